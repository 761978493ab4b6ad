//! Addresses and page numbers: the conversions between them. The engine calls a table's input a gfn, also in a
//! primary MMU's table.

use slat::{Gfn, Hva, PAGE_SHIFT, Span};

/// Returns the number of the page at `hva`.
#[inline]
pub(crate) const fn page_of(hva: Hva) -> Gfn {
    Gfn(hva.0 >> PAGE_SHIFT)
}

/// Returns the address of a page.
pub(crate) const fn hva_of(page: Gfn) -> Hva {
    Hva(page.0 << PAGE_SHIFT)
}

/// Returns the pages of an aligned range.
pub(crate) const fn pages_of(hvas: Span<Hva>) -> Span<Gfn> {
    Span::new(page_of(hvas.start), page_of(hvas.end))
}

/// Returns the addresses of pages.
pub(crate) const fn hvas_of(pages: Span<Gfn>) -> Span<Hva> {
    Span::new(hva_of(pages.start), hva_of(pages.end))
}
