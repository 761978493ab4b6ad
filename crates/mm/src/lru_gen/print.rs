//! Formats generations, byte for byte as the kernel prints them.

use crate::lru::{Generation, NodeGenerations};
use std::fmt;

/// One address space to print.
pub(super) struct Memcg<'a> {
    pub(super) number: u16,
    pub(super) path: &'a str,
    pub(super) nodes: &'a [NodeGenerations],
}

impl fmt::Display for Memcg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The header comes with the first node, as in the kernel, so an address space without nodes is not
        // shown.
        if !self.nodes.is_empty() {
            writeln!(f, "memcg {:5} {}", self.number, self.path)?;
        }
        for NodeGenerations { node, generations } in self.nodes {
            writeln!(f, " node {:5}", node.0)?;
            for Generation { seq, age, anon, file } in generations {
                writeln!(f, " {seq:10} {:10} {anon:10}  {file:10} ", age.as_millis())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;
    use std::time::Duration;

    #[test]
    fn columns_are_the_kernels() {
        let generation =
            |seq, age, anon, file| Generation { seq, age: Duration::from_millis(age), anon, file };
        let generations = vec![generation(7, 123_456, 0, 42), generation(8, 0, 12_345_678, 1)];
        let nodes = [
            NodeGenerations { node: Node(0), generations },
            NodeGenerations { node: Node(1), generations: vec![] },
        ];
        let text = Memcg { number: 12, path: "/vm", nodes: &nodes }.to_string();
        let expected = "\
memcg    12 /vm
 node     0
          7     123456          0          42 
          8          0   12345678           1 
 node     1
";
        assert_eq!(text, expected);
        assert_eq!(
            Memcg { number: 1, path: "", nodes: &nodes[1..] }.to_string(),
            "memcg     1 \n node     1\n"
        );
        assert_eq!(Memcg { number: 1, path: "", nodes: &[] }.to_string(), "");
    }
}
