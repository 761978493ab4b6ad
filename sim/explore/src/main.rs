fn main(){
  let a:Vec<u64>=std::env::args().skip(1).map(|x|x.parse().unwrap()).collect();
  let t=std::time::Instant::now();
  let mut steps=0;
  for seed in a[0]..a[0]+a[1]{
    let plan=slat_explore::plan::draw(seed,None);
    let o=slat_explore::world::run(&plan,None,a.len()>2);
    steps+=o.steps;
    if let Some(w)=&o.wrong{ println!("{seed} {:?} {}",w, o.steps); }
    for l in &o.story{println!("{l}");}
    if a.len()>2{println!("{plan:#?}")}
  }
  println!("{} steps {:?}",steps,t.elapsed());
}
