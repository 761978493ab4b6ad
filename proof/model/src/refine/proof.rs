//! A state of the proof beside one of the model: its elements, by the model's numbers.

use crate::scenario::Scenario;
use crate::state::{EPOCH, Op, PAGES, Range, Shared, Span, State, Why, Word, frame};
use slat_proof::{Code, Step, Structure, System, systems};
use std::collections::{BTreeMap, HashMap};

/// The page of short invalidations elsewhere in region 0.
pub(super) const ELSEWHERE: usize = PAGES as usize;
/// Pages of the proof.
pub(super) const ALL_PAGES: usize = ELSEWHERE + 1;
/// Roots, and leaf tables of each region, that may be made beside those of the initial state.
const SPARE_ROOTS: usize = 4;
const SPARE_TABLES: usize = 8;
/// Numbers that may be taken.
const NUMBERS: usize = 90;
/// Frames: four of each page, and one elsewhere.
const FRAMES: usize = 17;

/// The proof's transition system, with the numbers of its symbols, sorts and actions.
pub(super) struct Proof {
    pub(super) system: System,
    symbols: HashMap<String, usize>,
    actions: HashMap<String, usize>,
    /// The actions and the clauses, ready to be taken and evaluated.
    steps: Vec<Step>,
    clauses: Vec<Code>,
    /// Whether a symbol decides which translations the hardware loads.
    loads: Vec<bool>,
}

impl Proof {
    /// Reads the rules of the tables.
    pub(super) fn new() -> Self {
        let system = systems().into_iter().find(|system| system.name == "tables").expect("it is there");
        let symbols =
            system.symbols.iter().enumerate().map(|(at, symbol)| (symbol.name.clone(), at)).collect();
        let actions =
            system.actions.iter().enumerate().map(|(at, action)| (action.name.clone(), at)).collect();
        let steps = system.actions.iter().map(Step::new).collect();
        let clauses = system.clauses.iter().map(|clause| Code::new(&clause.formula)).collect();
        let names = ["cur", "leaf", "frozen", "frame", "writable", "reach", "loads", "stores"];
        let loads = system.symbols.iter().map(|symbol| names.contains(&symbol.name.as_str())).collect();
        Self { system, symbols, actions, steps, clauses, loads }
    }

    fn symbol(&self, name: &str) -> usize {
        *self.symbols.get(name).unwrap_or_else(|| panic!("the proof has no symbol {name}"))
    }
}

/// A state of the proof, and the elements that stand for the model's objects.
#[derive(Clone)]
pub(super) struct Beside<'a> {
    pub(super) proof: &'a Proof,
    pub(super) state: Structure,
    /// The proof's table for each node of the model.
    pub(super) tables: [Option<usize>; 8],
    /// Unused tables: roots, and leaf tables of each region.
    spare: [Vec<usize>; 3],
    /// Unused invalidations for those elsewhere.
    pub(super) shorts: Vec<usize>,
    /// For each thread, the number of a newer hole that its last attempt met.
    pub(super) met: Vec<Option<usize>>,
    pub(super) taken: BTreeMap<String, u64>,
    /// For each symbol, whether its values changed since the clauses were checked, and since the hardware loaded.
    changed: Vec<bool>,
    loadable: bool,
}

/// Returns the proof's invalidation for an operation of a thread. Number 0 is no invalidation.
pub(super) fn inval(scenario: &Scenario, thread: usize, op: u8) -> usize {
    let before: usize = scenario.programs[..thread].iter().map(Vec::len).sum();
    1 + before + usize::from(op)
}

impl<'a> Beside<'a> {
    /// The proof's state for the scenario's first one.
    pub(super) fn new(proof: &'a Proof, scenario: &Scenario) -> Self {
        let shared = &scenario.shared;
        let ops = scenario.programs.iter().flatten().count();
        let invals = 1 + ops + usize::from(shared.shorts);
        let faults = scenario.programs.len() + usize::from(PAGES);
        let roots = 1 + SPARE_ROOTS;
        let tables = roots + 2 * (SPARE_TABLES + 1);
        let entries = roots * 3 + (tables - roots) * 2;
        let sizes: Vec<usize> = proof
            .system
            .sorts
            .iter()
            .map(|sort| match sort.name.as_str() {
                "fault" => faults,
                "inval" => invals,
                "page" => ALL_PAGES,
                "region" => 2,
                "entry" => entries,
                "frame" => FRAMES,
                "vcpu" => usize::from(shared.vcpu_count),
                "num" => NUMBERS,
                "table" => tables,
                other => panic!("the proof has a new sort {other}"),
            })
            .collect();
        let state = Structure::new(&proof.system, &sizes, |_, _| 0);
        let spare = [
            (1..roots).rev().collect(),
            (roots..=roots + SPARE_TABLES).rev().collect(),
            (roots + SPARE_TABLES + 1..tables).rev().collect(),
        ];
        let shorts = (1 + ops..invals).rev().collect();
        let met = vec![None; scenario.programs.len()];
        let changed = vec![true; proof.system.symbols.len()];
        let mut beside = Self {
            proof,
            state,
            tables: [None; 8],
            spare,
            shorts,
            met,
            taken: BTreeMap::new(),
            changed,
            loadable: true,
        };
        beside.constants(scenario, roots, tables);
        beside.state.begin(&proof.system);
        beside.first(shared, scenario.programs.len());
        beside
    }

    pub(super) fn set(&mut self, name: &str, arguments: &[usize], value: usize) {
        self.state.set(&self.proof.system, self.proof.symbol(name), arguments, value);
    }

    pub(super) fn get(&self, name: &str, arguments: &[usize]) -> usize {
        self.state.get(&self.proof.system, self.proof.symbol(name), arguments)
    }

    pub(super) fn is(&self, name: &str, arguments: &[usize]) -> bool {
        self.get(name, arguments) != 0
    }

    /// Takes an action, which must be possible.
    pub(super) fn act(&mut self, name: &str, arguments: &[usize]) -> Result<(), String> {
        let at = *self.proof.actions.get(name).unwrap_or_else(|| panic!("the proof has no action {name}"));
        let action = &self.proof.system.actions[at];
        assert_eq!(action.parameters.len(), arguments.len(), "{name}");
        let changed = self.state.take(&self.proof.steps[at], arguments).map_err(|item| {
            let label = &action.items[item].0;
            format!("the proof forbids {name}{arguments:?}: requirement {item} {label}")
        })?;
        for symbol in changed {
            self.changed[symbol] = true;
            self.loadable |= self.proof.loads[symbol];
        }
        *self.taken.entry(name.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Checks every clause that reads a symbol which has changed since the last check, or every clause.
    pub(super) fn check(&mut self, every: bool) -> Result<(), String> {
        for (code, clause) in self.proof.clauses.iter().zip(&self.proof.system.clauses) {
            let is_read = every || code.reads().iter().any(|&symbol| self.changed[symbol]);
            if is_read && !self.state.holds(code) {
                return Err(format!("{} does not hold: {:?}", clause.name, self.state.witness(code)));
            }
        }
        self.changed.fill(false);
        Ok(())
    }

    /// The next number.
    pub(super) fn next_number(&self) -> Option<usize> {
        Some(self.get("newest", &[]) + 1).filter(|&number| number < NUMBERS)
    }

    /// An unused table for a node of the model; `None`: there is none.
    pub(super) fn new_table(&mut self, shared: &Shared, node: u8, gfn: u8) -> Option<usize> {
        let kind = if shared.nodes[usize::from(node)].level > 0 { 0 } else { 1 + usize::from(gfn / 2) };
        let table = self.spare[kind].pop()?;
        self.tables[usize::from(node)] = Some(table);
        Some(table)
    }

    /// The proof's table for a node.
    pub(super) fn table(&self, node: u8) -> usize {
        self.tables[usize::from(node)].expect("the node is in use")
    }

    /// The proof's entry for that of a node.
    pub(super) fn entry(&self, shared: &Shared, node: u8, index: usize) -> usize {
        let table = self.table(node);
        let page = if shared.nodes[usize::from(node)].level > 0 {
            index * 2
        } else {
            self.first_page(table) + index
        };
        self.get("row", &[table, page])
    }

    fn first_page(&self, table: usize) -> usize {
        (0..ALL_PAGES).find(|&page| self.is("extent", &[table, page])).expect("a table has pages")
    }

    /// Symbols that never change.
    fn constants(&mut self, scenario: &Scenario, roots: usize, tables: usize) {
        for page in 0..ALL_PAGES {
            self.set("region", &[page], if page == ELSEWHERE { 0 } else { page / 2 });
            self.set("home", &[page], if page == ELSEWHERE { FRAMES - 1 } else { page });
            for other in 0..ALL_PAGES {
                let alike = page == other || page < ELSEWHERE && other < ELSEWHERE && page / 2 == other / 2;
                self.set("around", &[page, other], alike.into());
            }
        }
        self.set("root", &[], 0);
        for table in 0..tables {
            let (base, of) = match table.checked_sub(roots) {
                None => (table * 3, 0..ALL_PAGES),
                Some(leaf) => {
                    let region = leaf / (SPARE_TABLES + 1);
                    (roots * 3 + leaf * 2, region * 2..region * 2 + 2)
                }
            };
            for page in of.clone() {
                let entry = base + if table < roots { page / 2 } else { page - of.start };
                self.set("extent", &[table, page], 1);
                self.set("row", &[table, page], entry);
                self.set("part", &[entry, table], 1);
                self.set("small", &[entry], (table >= roots).into());
                self.set("under", &[entry, page], 1);
            }
        }
        for (thread, program) in scenario.programs.iter().enumerate() {
            for (op, what) in (0..).zip(program) {
                let k = inval(scenario, thread, op);
                let (pages, narrow, protects) = match *what {
                    Op::Invalidate { range: Range::Gfns(pages), why, .. } => (pages, false, why.withdraws()),
                    Op::Invalidate { range: Range::Hvas(pages), why, .. } => (pages, true, why.withdraws()),
                    _ => (Span::new(0, PAGES + 1), false, false),
                };
                self.set("narrow", &[k], narrow.into());
                self.set("protects", &[k], protects.into());
                for page in pages.start..pages.end {
                    self.set("range", &[k, page.into()], 1);
                }
            }
        }
        for &k in &self.shorts.clone() {
            self.set("narrow", &[k], 1);
            self.set("range", &[k, ELSEWHERE], 1);
        }
    }

    /// The tables and the host's pages of the first state. A vCPU that is not in the program may have frozen a leaf.
    fn first(&mut self, shared: &Shared, threads: usize) {
        self.tables[usize::from(shared.root)] = Some(0);
        for a in 0..FRAMES {
            let page = a % usize::from(PAGES);
            let is_first = a < usize::from(PAGES);
            self.set("allows", &[a], usize::from(!is_first || shared.writable[page]));
        }
        for region in 0..2_u8 {
            let top = self.entry(shared, shared.root, region.into());
            if let Word::Table(child) = shared.nodes[usize::from(shared.root)].entries[usize::from(region)] {
                let table = self.new_table(shared, child, region * 2).expect("there are spare ones");
                self.set("used", &[table], 1);
                self.set("link", &[top], 1);
                self.set("child", &[top, table], 1);
                self.set("live_link", &[top], 1);
                self.set("live_entry", &[top], 0);
                for index in 0..2 {
                    let entry = self.entry(shared, child, index);
                    self.set("live_entry", &[entry], 1);
                    self.set("above", &[top, entry], 1);
                    self.set("cur", &[usize::from(region) * 2 + index], entry);
                    self.first_word(shared.nodes[usize::from(child)].entries[index], entry, threads);
                }
            } else {
                let word = shared.nodes[usize::from(shared.root)].entries[usize::from(region)];
                self.first_word(word, top, threads);
            }
        }
        self.hardware();
    }

    fn first_word(&mut self, word: Word, entry: usize, threads: usize) {
        let under: Vec<usize> = (0..ALL_PAGES).filter(|&page| self.is("under", &[entry, page])).collect();
        match word {
            Word::Leaf(leaf) => {
                self.set("leaf", &[entry], 1);
                self.set("writable", &[entry], leaf.write.into());
                self.set("host_writable", &[entry], leaf.host_write.into());
            }
            Word::Frozen(_) => {
                let owner = threads + under[0];
                self.set("leaf", &[entry], 1);
                self.set("frozen", &[entry], 1);
                self.set("owner", &[entry], owner);
                self.set("at", &[owner], entry);
                self.set("page_of", &[owner], under[0]);
                self.set("started", &[owner], 1);
                self.set("upgrades", &[owner], 1);
                for &page in &under {
                    self.set("looks", &[owner, page], 1);
                }
            }
            _ => {}
        }
        for page in under {
            self.set("frame", &[entry, page], page);
        }
    }

    /// Number of vCPUs.
    pub(super) fn vcpus(&self) -> usize {
        self.size("vcpu")
    }

    fn size(&self, sort: &str) -> usize {
        let at = self.proof.system.sorts.iter().position(|known| known.name == sort);
        self.state.sizes[at.expect("the proof has this sort")]
    }

    /// The hardware loads what it can.
    pub(super) fn hardware(&mut self) {
        if !std::mem::take(&mut self.loadable) {
            return;
        }
        let entries = self.size("entry");
        let reach = self.proof.symbol("reach");
        for v in 0..self.vcpus() {
            for p in 0..usize::from(PAGES) {
                let e = self.get("cur", &[p]);
                if self.loads_more(v, p, e) {
                    self.act("load", &[v, p]).expect("its guard was checked");
                }
                for e in 0..entries {
                    if self.state.get(&self.proof.system, reach, &[v, e]) != 0
                        && self.is("under", &[e, p])
                        && self.loads_more(v, p, e)
                    {
                        self.act("load_dead", &[v, p, e]).expect("its guard was checked");
                    }
                }
            }
        }
    }

    fn loads_more(&self, v: usize, p: usize, e: usize) -> bool {
        let a = self.get("frame", &[e, p]);
        let new =
            !self.is("loads", &[v, p, a]) || self.is("writable", &[e]) && !self.is("stores", &[v, p, a]);
        self.is("leaf", &[e]) && !self.is("frozen", &[e]) && new
    }

    /// Compares the state with the model's.
    pub(super) fn compare(&self, scenario: &Scenario, s: &State) -> Result<(), String> {
        let shared = &s.shared;
        let equal = |what: &str, model: usize, proof: usize| {
            if model == proof {
                Ok(())
            } else {
                Err(format!("{what}: {model} in the model, {proof} in the proof"))
            }
        };
        // Numbers: their order alone.
        let mut numbers = vec![(shared.numbers.newest, self.get("newest", &[]))];
        numbers.push((shared.lines[EPOCH].newest, self.get("epoch", &[])));
        numbers.extend((0..2).map(|r| (shared.lines[r].newest, self.get("newest_in", &[r]))));
        for (node, _) in (0..).zip(self.tables).filter(|(_, table)| table.is_some()) {
            for (index, &word) in shared.nodes[usize::from(node)].entries.iter().enumerate() {
                let e = self.entry(shared, node, index);
                let is = |name| self.get(name, &[e]);
                let (link, leaf, frozen) = match word {
                    Word::Table(_) => (1, 0, 0),
                    Word::Leaf(_) => (0, 1, 0),
                    Word::Frozen(_) => (0, 1, 1),
                    Word::Hole(_) | Word::Mmio(_) => (0, 0, 0),
                };
                let what = |part: &str| format!("entry {node}.{index}: {part}");
                equal(&what("link"), link, is("link"))?;
                equal(&what("leaf"), leaf, is("leaf"))?;
                equal(&what("frozen"), frozen, if leaf == 1 { is("frozen") } else { 0 })?;
                match word {
                    Word::Leaf(leaf) => {
                        equal(&what("writable"), leaf.write.into(), is("writable"))?;
                        equal(&what("host_writable"), leaf.host_write.into(), is("host_writable"))?;
                        let first = (0..ALL_PAGES).find(|&page| self.is("under", &[e, page])).expect("pages");
                        equal(&what("frame"), leaf.pfn.into(), self.get("frame", &[e, first]))?;
                    }
                    Word::Hole(number) => numbers.push((number, is("number"))),
                    _ => {}
                }
            }
        }
        for page in 0..usize::from(PAGES) {
            let now = usize::from(frame(shared.frames[page], page as u8));
            equal("host", now, self.get("host", &[page]))?;
            equal("allows", shared.writable[page].into(), self.get("allows", &[now]))?;
            for v in 0..usize::from(shared.vcpu_count) {
                for a in 0..16 {
                    let caches = &shared.vcpus[v];
                    let more = caches.loads[page] >> a & 1 != 0 && !self.is("loads", &[v, page, a])
                        || caches.stores[page] >> a & 1 != 0 && !self.is("stores", &[v, page, a]);
                    if more {
                        return Err(format!(
                            "a translation of page {page} to frame {a} that the proof has not"
                        ));
                    }
                }
            }
        }
        for (i, thread) in s.threads.iter().enumerate() {
            let place = &shared.slots[i];
            if !place.active {
                continue;
            }
            let k = inval(scenario, i, thread.op);
            equal("active", 1, self.get("active", &[k]))?;
            equal("flushed", usize::from(!place.unflushed), self.get("flushed", &[k]))?;
            equal("wide", usize::from(shared.lines[EPOCH].listed >> i & 1), self.get("wide", &[k]))?;
            for r in 0..2 {
                equal("listed", usize::from(shared.lines[r].listed >> i & 1), self.get("listed", &[k, r]))?;
            }
            if self.is("numbered", &[k]) {
                numbers.push((place.first, self.get("first", &[k])));
                numbers.push((place.last, self.get("last", &[k])));
            }
        }
        numbers.sort_unstable();
        let in_order = |pair: &[(u8, usize)]| {
            (pair[0].0 == pair[1].0) == (pair[0].1 == pair[1].1) && pair[0].1 <= pair[1].1
        };
        if numbers.windows(2).all(in_order) {
            Ok(())
        } else {
            Err(format!("numbers in another order: {numbers:?}"))
        }
    }
}

/// Whether the proof has this operation.
pub(super) fn has(op: Op) -> bool {
    match op {
        Op::Access { .. } | Op::Split { .. } | Op::Age { .. } | Op::ZapAll => true,
        Op::Invalidate { why, .. } => matches!(why, Why::Unmap | Why::Clear | Why::Protect),
        _ => false,
    }
}
