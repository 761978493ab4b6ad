//! Lists that own table pages outside any table.

use super::memory::Node;

/// A list of table pages outside any table, linked through their notes. The owner of the list owns the pages.
#[derive(Debug, Default)]
pub(crate) struct NodeList {
    head: Option<Node>,
    tail: Option<Node>,
    len: usize,
}

impl NodeList {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, node: Node) {
        // SAFETY: the list owns its pages, and now also this one.
        unsafe { node.note() }.next.set(self.head);
        self.tail = self.tail.or(Some(node));
        self.head = Some(node);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Node> {
        let node = self.head?;
        // SAFETY: the list owned it until here.
        self.head = unsafe { node.note() }.next.take();
        self.len -= 1;
        if self.head.is_none() {
            self.tail = None;
        }
        Some(node)
    }

    /// Moves up to `many` pages to a new list.
    pub(super) fn split_off(&mut self, many: usize) -> Self {
        let mut some = Self::default();
        while some.len < many
            && let Some(node) = self.pop()
        {
            some.push(node);
        }
        some
    }

    /// The pages, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Node> {
        // SAFETY: the list owns its pages.
        core::iter::successors(self.head, |node| unsafe { node.note() }.next.get())
    }

    #[inline(always)]
    pub(crate) fn append(&mut self, other: &mut Self) {
        if let Some(last) = other.tail {
            self.append_up_to(last, other);
        }
    }

    #[cold]
    fn append_up_to(&mut self, last: Node, other: &mut Self) {
        // SAFETY: `other` owned the page, and is emptied here.
        unsafe { last.note() }.next.set(self.head);
        self.tail = self.tail.or(other.tail);
        self.head = other.head;
        self.len += other.len;
        *other = Self::default();
    }
}
