//! A guest with two tasks on one vCPU: while the page of one task is on its way, the vCPU runs the other. Also
//! a guest with one task, whose thread parks.

use slat::table::formats::Ept4;
use slat::*;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Thread};

const RAM: Hva = Hva(1 << 40);
const PAGES: u64 = 64;

/// A host whose pages come from a thread, one by one. A page's token is its frame.
struct Remote {
    here: Mutex<BTreeSet<u64>>,
    requests: Sender<u64>,
    sleeper: Mutex<Option<Thread>>,
}

impl Host for Remote {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let page = (hva.0 - RAM.0) / PAGE_SIZE;
        if self.here.lock().unwrap().contains(&page) {
            return Ok(HostPage { pfn: Pfn(page), ..HostPage::PLAIN });
        }
        self.requests.send(page).unwrap();
        Err(HostError::Pending)
    }

    fn token(&self, hva: Hva) -> Token {
        Token((hva.0 - RAM.0) / PAGE_SIZE)
    }

    fn kick(&self, _: VcpuId) {
        if let Some(sleeper) = &*self.sleeper.lock().unwrap() {
            sleeper.unpark();
        }
    }
}

/// A task that stores its number to its own pages, in order.
#[derive(Default)]
struct Task {
    done: u64,
    waits: Option<Token>,
}

/// Tasks that take turns. A task that waits for a page is skipped.
struct Tasks {
    tasks: Vec<Task>,
    next: usize,
    /// Stores made while another task waited.
    beside: u64,
}

impl Tasks {
    fn new(tasks: usize) -> Self {
        Self { tasks: (0..tasks).map(|_| Task::default()).collect(), next: 0, beside: 0 }
    }
}

impl Program for Tasks {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let count = self.tasks.len();
        let each = PAGES / count as u64;
        let runs = |task: &Task| task.waits.is_none() && task.done < each;
        let Some(number) = (self.next..self.next + count).map(|n| n % count).find(|&n| runs(&self.tasks[n]))
        else {
            return Ok(Step::Stop);
        };
        self.next = number;
        let task = &self.tasks[number];
        let page = number as u64 * each + task.done;
        core.store(Gfn(page).gpa(), &(number as u64 + 1).to_le_bytes())?;
        self.tasks[number].done += 1;
        self.beside += u64::from(self.tasks.iter().any(|task| task.waits.is_some()));
        Ok(Step::Next)
    }

    fn page_not_present(&mut self, token: Token) -> bool {
        self.tasks[self.next].waits = Some(token);
        self.tasks.len() > 1
    }

    fn page_ready(&mut self, token: Token) {
        for task in &mut self.tasks {
            task.waits = task.waits.filter(|waits| *waits != token);
        }
    }
}

/// Runs `count` tasks to their end on one vCPU. Returns the number of stores made while another task waited.
fn run(count: usize) -> u64 {
    let (requests, asked) = channel();
    let host = Remote { here: Mutex::default(), requests, sleeper: Mutex::new(Some(thread::current())) };
    let vm = Vm::<Ept4, _>::builder(host).build().unwrap();
    let mut idle = Idle::take().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, RAM))).unwrap();
    let mut memory = vec![0_u8; (PAGES * PAGE_SIZE) as usize];
    // SAFETY: the memory outlives the vCPU, and is read only after the vCPU is gone.
    let window = unsafe { Window::new(NonNull::new(memory.as_mut_ptr()).unwrap(), PAGES) };
    let mut tasks = Tasks::new(count);
    thread::scope(|scope| {
        let pager = &vm;
        scope.spawn(move || {
            // Every page is requested at least once. The last task ends with the last page.
            while pager.host().here.lock().unwrap().len() < PAGES as usize {
                let page = asked.recv().unwrap();
                pager.host().here.lock().unwrap().insert(page);
                pager.ready(Token(page));
            }
        });
        let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), window);
        let is_over = |tasks: &Tasks| tasks.tasks.iter().all(|task| task.done == PAGES / count as u64);
        while !is_over(&tasks) {
            match cpu.run(&mut idle, &mut tasks) {
                Exit::Failed(_, FaultError::Host(HostError::Pending)) => assert_eq!(count, 1),
                Exit::Stopped => {}
                exit => panic!("{exit:?}"),
            }
            while !is_over(&tasks) && !cpu.is_ready() {
                thread::park();
            }
        }
    });
    for page in 0..PAGES {
        let at = (page * PAGE_SIZE) as usize;
        let word = u64::from_le_bytes(memory[at..at + 8].try_into().unwrap());
        assert_eq!(word, page / (PAGES / count as u64) + 1, "page {page}");
    }
    tasks.beside
}

#[test]
fn a_vcpu_runs_another_task_while_the_page_of_one_is_on_its_way() {
    assert!((0..100).any(|_| run(2) > 0), "the other task never ran meanwhile");
}

#[test]
fn a_vcpu_with_one_task_parks_until_its_page_is_there() {
    assert_eq!(run(1), 0);
}
