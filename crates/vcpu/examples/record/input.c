struct s0 { int a; unsigned b[9]; struct s0 *next; };
static unsigned f0(struct s0 *p, unsigned n) {
  unsigned t = 848845830u;
  for (unsigned i = 0; i < n; i++) {
    t = t * 93u + p->b[i % 9];
    switch (t % 4u) {
    case 0: t ^= 644823u + i; p->a += (int)(t >> 7); break;
    case 1: t ^= 294025u + i; p->a += (int)(t >> 7); break;
    case 2: t ^= 982352u + i; p->a += (int)(t >> 7); break;
    default: if (p->next) p = p->next; else t += 1;
    }
  }
  return t;
}
struct s1 { int a; unsigned b[8]; struct s1 *next; };
static unsigned f1(struct s1 *p, unsigned n) {
  unsigned t = 416527494u;
  for (unsigned i = 0; i < n; i++) {
    t = t * 59u + p->b[i % 8];
    switch (t % 6u) {
    case 0: t ^= 383542u + i; p->a += (int)(t >> 20); break;
    case 1: t ^= 1022216u + i; p->a += (int)(t >> 20); break;
    case 2: t ^= 255078u + i; p->a += (int)(t >> 20); break;
    case 3: t ^= 1046851u + i; p->a += (int)(t >> 20); break;
    case 4: t ^= 918272u + i; p->a += (int)(t >> 20); break;
    default: if (p->next) p = p->next; else t += f0((void *)p, n / 2);
    }
  }
  return t;
}
int main(void) {
  static struct s0 x;
  unsigned t = 0;
  t += f0((void *)&x, t & 7);
  t += f1((void *)&x, t & 7);
  return (int)t;
}
