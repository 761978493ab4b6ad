//! The actions of the proof that a step of the model stands for.

use super::proof::{Beside, ELSEWHERE, inval};
use crate::check::Action;
use crate::scenario::Scenario;
use crate::state::{EPOCH, Op, Pc, Range, Span, State, Thread, Why, Word, frame};

/// A step of the model, before and after.
pub(super) struct Step<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) before: &'a State,
    pub(super) after: &'a State,
}

/// Why a step is not matched.
pub(super) enum Miss {
    /// The proof forbids it.
    Unmatched(String),
    /// The finite state of the proof has no element left.
    Exhausted,
}

impl From<String> for Miss {
    fn from(why: String) -> Self {
        Self::Unmatched(why)
    }
}

type Outcome = Result<(), Miss>;

impl Step<'_> {
    /// Takes the actions.
    pub(super) fn take(&self, action: Action, beside: &mut Beside<'_>) -> Outcome {
        match action {
            Action::Short => short(beside)?,
            Action::Thread(i, _) => self.thread(i.into(), beside)?,
            Action::Collect | Action::GiveBack => {
                for (node, table) in self.after.shared.nodes.iter().zip(&mut beside.tables) {
                    if node.free {
                        *table = None;
                    }
                }
            }
            Action::Store(..) | Action::Vcpu(..) | Action::Leave(_) => {}
        }
        beside.hardware();
        Ok(())
    }

    fn thread(&self, i: usize, beside: &mut Beside<'_>) -> Outcome {
        let (was, is) = (&self.before.threads[i], &self.after.threads[i]);
        match self.scenario.programs[i][usize::from(was.op)] {
            Op::Access { gfn, large, write, .. } => self.fault(i, (gfn, large, write), beside),
            Op::Split { gfn } if was.pc == Pc::SplitLink => self.split(i, gfn, beside),
            Op::Split { .. } | Op::Age { .. } => Ok(()),
            op => self.invalidation(i, op, (was, is), beside),
        }
    }

    /// The entry at which a thread stands.
    fn entry(&self, thread: &Thread, beside: &Beside<'_>) -> usize {
        let index = usize::from(thread.gfn >> thread.walk.level & 1);
        beside.entry(&self.before.shared, thread.node(), index)
    }

    /// The word at which a thread stands, in a state.
    fn word(state: &State, thread: &Thread) -> Word {
        state.shared.nodes[usize::from(thread.node())].entries
            [usize::from(thread.gfn >> thread.walk.level & 1)]
    }

    fn split(&self, i: usize, gfn: u8, beside: &mut Beside<'_>) -> Outcome {
        let was = &self.before.threads[i];
        let Word::Table(child) = Self::word(self.after, was) else { return Ok(()) };
        if Self::word(self.before, was) == Word::Table(child) {
            return Ok(());
        }
        let e = self.entry(was, beside);
        let t = beside.new_table(&self.after.shared, child, gfn).ok_or(Miss::Exhausted)?;
        Ok(beside.act("split", &[gfn.into(), e, t])?)
    }

    fn invalidation(
        &self,
        i: usize,
        op: Op,
        (was, is): (&Thread, &Thread),
        beside: &mut Beside<'_>,
    ) -> Outcome {
        let k = inval(self.scenario, i, was.op);
        let number = beside.next_number().ok_or(Miss::Exhausted)?;
        let p = usize::from(was.gfn);
        match was.pc {
            Pc::Start => return Ok(beside.act("begin", &[k])?),
            Pc::List if was.change.lines == 1 << EPOCH => return Ok(beside.act("begin_wide", &[k, number])?),
            Pc::List => {
                beside.act("list", &[k, was.change.lines.trailing_zeros() as usize])?;
                if is.pc != Pc::List {
                    beside.act("number_it", &[k, number])?;
                }
                return Ok(());
            }
            Pc::Announce => {
                beside.act("announce", &[k, was.change.lines.trailing_zeros() as usize])?;
                if is.pc != Pc::Announce {
                    beside.act("begin_walk", &[k])?;
                }
                return Ok(());
            }
            Pc::EditEntry => self.edit(i, k, beside)?,
            Pc::SplitPart => self.split(i, was.gfn, beside)?,
            Pc::WidenSlot => {
                let e = self.entry(was, beside);
                beside.act("widen", &[k, p, e])?;
            }
            Pc::NextNumber => return Err(Miss::Unmatched("a number without a list".into())),
            Pc::GoWide => beside.act("go_wide", &[k, number])?,
            Pc::Flip => {
                let t =
                    beside.new_table(&self.after.shared, self.after.shared.root, 0).ok_or(Miss::Exhausted)?;
                beside.act("flip", &[k, 0, t])?;
            }
            Pc::ShootDown(v) => return Ok(beside.act("answer", &[k, v.into()])?),
            Pc::Flushed => return Ok(beside.act("mark_flushed", &[k])?),
            Pc::HostChanges => return self.host(k, op, beside),
            Pc::EndEpoch => return Ok(beside.act("end_epoch", &[k, number])?),
            Pc::EndSlot => return Ok(beside.act("end", &[k])?),
            _ => {}
        }
        // The pass may have ended.
        if is.change.again && !was.change.again {
            let number = beside.next_number().ok_or(Miss::Exhausted)?;
            beside.act("repeat", &[k, number])?;
        } else if matches!(is.pc, Pc::ShootDown(_) | Pc::Flushed) || op == Op::ZapAll && was.pc == Pc::Flip {
            beside.act("settle", &[k])?;
        }
        Ok(())
    }

    /// An edit of an entry.
    fn edit(&self, i: usize, k: usize, beside: &mut Beside<'_>) -> Outcome {
        let was = &self.before.threads[i];
        let (e, p) = (self.entry(was, beside), usize::from(was.gfn));
        let now = Self::word(self.after, was);
        let waits = [Pc::SplitPart, Pc::WidenSlot, Pc::GoWide];
        let next = self.after.threads[i].pc;
        let undone = waits.contains(&next) && !self.after.threads[i].walk.span.is_empty();
        match Self::word(self.before, was) {
            _ if undone => {}
            Word::Table(_) if matches!(now, Word::Hole(_)) => beside.act("unhook", &[k, p, e])?,
            Word::Table(_) => {}
            Word::Leaf(leaf) => match now {
                Word::Hole(_) => beside.act("zap_leaf", &[k, p, e])?,
                _ if leaf.write || leaf.host_write => beside.act("protect_leaf", &[k, p, e])?,
                _ => beside.act("pass_leaf", &[k, p, e])?,
            },
            Word::Frozen(_) => beside.act("zap_leaf", &[k, p, e])?,
            Word::Hole(_) | Word::Mmio(_) => beside.act("edit_hole", &[k, p, e])?,
        }
        Ok(())
    }

    /// The host changes its pages.
    fn host(&self, k: usize, op: Op, beside: &mut Beside<'_>) -> Outcome {
        let Op::Invalidate {
            range: Range::Gfns(Span { start, end }) | Range::Hvas(Span { start, end }),
            why,
            ..
        } = op
        else {
            return Ok(());
        };
        for page in start..end {
            let at = usize::from(page);
            let [old, new] = [self.before, self.after].map(|s| s.shared.frames[at]);
            if why == Why::Protect {
                beside.act("host_protects", &[k, at])?;
            } else if old != new {
                beside.act("host_frees", &[k, at, frame(new, page).into()])?;
            }
        }
        Ok(())
    }

    /// A step of a guest access.
    fn fault(&self, f: usize, (gfn, large, write): (u8, bool, bool), beside: &mut Beside<'_>) -> Outcome {
        let (was, is) = (&self.before.threads[f], &self.after.threads[f]);
        let start = |beside: &mut Beside<'_>| -> Outcome {
            beside.act("start", &[f, gfn.into()])?;
            if !large {
                beside.act("map_small", &[f])?;
            }
            Ok(())
        };
        // The operation ends, or begins again.
        let over = is.op != was.op || is.pc == Pc::Start || is.pc == Pc::Stamp && was.pc != Pc::Descend;
        let retry = |beside: &mut Beside<'_>| -> Outcome {
            if beside.is("started", &[f]) {
                beside.act("retry", &[f])?;
            }
            if is.op == was.op && is.pc == Pc::Stamp && is.fault.asking { start(beside) } else { Ok(()) }
        };
        match was.pc {
            Pc::Start => {
                start(beside)?;
                self.enter(f, beside)?;
            }
            Pc::Descend => match Self::word(self.before, was) {
                Word::Table(child) => {
                    let t = beside.table(child);
                    let e = beside.get("row", &[t, gfn.into()]);
                    beside.act("walk_down", &[f, e, t])?;
                }
                _ if is.op != was.op || is.pc == Pc::Start => retry(beside)?,
                // A frozen entry is no hole, and the compare-and-swap fails.
                _ => beside.act("load_entry", &[f])?,
            },
            Pc::Stamp if was.walk.thawed.is_some() => beside.act("read_epoch_again", &[f])?,
            Pc::Stamp => beside.act("read_epoch", &[f])?,
            Pc::StampRegion => stamp(f, gfn, beside)?,
            Pc::ScanRegion => beside.act("scan_region", &[f])?,
            Pc::LookRegion => self.look((f, "left", "look_region"), retry, beside)?,
            Pc::ScanEpoch => {
                beside.act("scan_epoch", &[f])?;
                self.confirm(f, retry, beside)?;
            }
            Pc::LookEpoch => {
                self.look((f, "left_wide", "look_epoch"), retry, beside)?;
                if beside.is("epoch_listed", &[f]) {
                    self.confirm(f, retry, beside)?;
                }
            }
            Pc::Lookup if was.walk.thawed.is_some() => beside.act("decide", &[f])?,
            Pc::Lookup | Pc::Resolve if is.fault.page.is_none() => retry(beside)?,
            Pc::Lookup | Pc::Resolve => self.answer(f, write, beside)?,
            Pc::LinkDown => {
                let e = self.entry(was, beside);
                if let Word::Table(child) = Self::word(self.after, was)
                    && Self::word(self.before, was) == was.walk.word
                {
                    let t = beside.new_table(&self.after.shared, child, gfn).ok_or(Miss::Exhausted)?;
                    beside.act("link_down", &[f, e, t])?;
                } else if over {
                    retry(beside)?;
                }
            }
            Pc::Install => {
                let e = self.entry(was, beside);
                let now = Self::word(self.after, was);
                if matches!((Self::word(self.before, was), now), (Word::Hole(_), Word::Leaf(_))) {
                    beside.act("install", &[f, e])?;
                } else {
                    beside.met[f] =
                        (is.fault.met > 0 && beside.is("walked", &[f])).then(|| beside.get("met", &[f]));
                    retry(beside)?;
                }
            }
            Pc::Freeze if is.pc == Pc::Stamp && is.walk.thawed.is_some() => {
                let e = self.entry(was, beside);
                let name = if was.fault.offered.is_some() { "freeze_offered" } else { "freeze" };
                beside.act(name, &[f, e])?;
            }
            Pc::Freeze => retry(beside)?,
            Pc::Thaw => {
                let e = self.entry(was, beside);
                if Self::word(self.before, was) == Word::Frozen(f as u8)
                    && was.walk.thawed != Some(was.walk.word)
                {
                    beside.act("thaw", &[f, e])?;
                } else {
                    beside.act("thaw_back", &[f])?;
                }
                retry(beside)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The host answers a fault.
    fn answer(&self, f: usize, write: bool, beside: &mut Beside<'_>) -> Outcome {
        for page in 0..4 {
            let [old, new] = [self.before, self.after].map(|s| s.shared.writable[page]);
            if write && new && !old {
                beside.act("host_allows", &[page])?;
            }
        }
        if !self.after.threads[f].fault.page.is_some_and(|page| page.large) {
            beside.act("map_small", &[f])?;
        }
        beside.act("ask", &[f])?;
        self.enter(f, beside)
    }

    /// A fault enters the tables at the root.
    fn enter(&self, f: usize, beside: &mut Beside<'_>) -> Outcome {
        let is = &self.after.threads[f];
        if is.pc == Pc::Descend {
            let first = beside.get("row", &[beside.get("top", &[]), is.gfn.into()]);
            beside.act("walk", &[f, first])?;
        }
        Ok(())
    }

    /// A look at one place of a list.
    fn look(
        &self,
        (f, list, action): (usize, &str, &str),
        retry: impl Fn(&mut Beside<'_>) -> Outcome,
        beside: &mut Beside<'_>,
    ) -> Outcome {
        let (was, is) = (&self.before.threads[f], &self.after.threads[f]);
        let place = was.fault.places.trailing_zeros() as usize;
        if is.pc == Pc::Start || is.op != was.op {
            // Covered; or the last look, and the epoch has moved.
            return retry(beside);
        }
        if is.pc == Pc::Thaw {
            return Ok(());
        }
        let ops = self.scenario.programs[place].len() as u8;
        let invals = (0..ops).map(|op| inval(self.scenario, place, op));
        for k in invals.filter(|&k| beside.is(list, &[f, k])).collect::<Vec<_>>() {
            beside.act(action, &[f, k])?;
        }
        Ok(())
    }

    /// The second read of the epoch.
    fn confirm(
        &self,
        f: usize,
        retry: impl Fn(&mut Beside<'_>) -> Outcome,
        beside: &mut Beside<'_>,
    ) -> Outcome {
        match self.after.threads[f].pc {
            Pc::Lookup | Pc::Resolve => Ok(beside.act("confirm", &[f])?),
            Pc::Start => retry(beside),
            _ => Ok(()),
        }
    }
}

/// A fault takes its stamp, which is not below the hole that it has met.
fn stamp(f: usize, gfn: u8, beside: &mut Beside<'_>) -> Outcome {
    let walked = beside.is("walked", &[f]).then(|| beside.get("met", &[f]));
    let met = walked.max(beside.met[f].take());
    let region = beside.get("region", &[gfn.into()]);
    match met {
        Some(n) if n > beside.get("newest_in", &[region]) => beside.act("read_newer_hole", &[f, n])?,
        _ => beside.act("read_region", &[f])?,
    }
    Ok(())
}

/// A short invalidation elsewhere in region 0.
fn short(beside: &mut Beside<'_>) -> Outcome {
    let k = beside.shorts.pop().ok_or(Miss::Exhausted)?;
    let number = beside.next_number().ok_or(Miss::Exhausted)?;
    let e = beside.get("cur", &[ELSEWHERE]);
    beside.act("begin", &[k])?;
    beside.act("list", &[k, 0])?;
    beside.act("number_it", &[k, number])?;
    beside.act("announce", &[k, 0])?;
    beside.act("begin_walk", &[k])?;
    beside.act("edit_hole", &[k, ELSEWHERE, e])?;
    beside.act("settle", &[k])?;
    // It may have met the number of another one elsewhere, within a debtor's numbers. It then flushes a page that no
    // vCPU has.
    for v in 0..beside.vcpus() {
        beside.act("answer", &[k, v])?;
    }
    beside.act("mark_flushed", &[k])?;
    beside.act("end", &[k])?;
    Ok(())
}
