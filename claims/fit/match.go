package fit

import "math/bits"

// bitset is a set of small numbers: guest cells, host cells.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) has(i int) bool { return b[i>>6]&(1<<(i&63)) != 0 }
func (b bitset) set(i int)      { b[i>>6] |= 1 << (i & 63) }
func (b bitset) clone() bitset  { return append(bitset(nil), b...) }
func (b bitset) reset()         { clear(b) }

// include adds what is in o, which is of the same size.
func (b bitset) include(o bitset) {
	for i := range o {
		b[i] |= o[i]
	}
}

func (b bitset) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// matching grows a matching of host cells to guest cells one host cell at a
// time. The host cells in it are an independent set of a transversal matroid:
// whatever can be added to a set that is too small, can be added in any order,
// and taking the most valuable first gives the most valuable set (Edmonds 1971).
type matching struct {
	admits []bitset // by host cell: the guest cells that it holds
	host   []int    // by guest cell: the host cell it is matched to, or −1
	size   int
	seen   bitset // guest cells looked at in this augmentation
}

func newMatching(admits []bitset, guests int) *matching {
	m := &matching{admits: admits, host: make([]int, guests), seen: newBitset(guests)}
	m.empty()
	return m
}

func (m *matching) empty() {
	for g := range m.host {
		m.host[g] = -1
	}
	m.size = 0
}

// add brings a host cell in, moving others to other guest cells where that makes
// room; false when the set with it can not be matched.
func (m *matching) add(host int) bool {
	m.seen.reset()
	if !m.augment(host) {
		return false
	}
	m.size++
	return true
}

func (m *matching) augment(host int) bool {
	for w, word := range m.admits[host] {
		// Guest cells nobody has come before those to be moved.
		for rest := word &^ m.seen[w]; rest != 0; rest &= rest - 1 {
			g := w<<6 + bits.TrailingZeros64(rest)
			if m.host[g] < 0 {
				m.host[g] = host
				return true
			}
		}
	}
	for w := range m.admits[host] {
		for {
			rest := m.admits[host][w] &^ m.seen[w]
			if rest == 0 {
				break
			}
			g := w<<6 + bits.TrailingZeros64(rest)
			m.seen.set(g)
			if m.augment(m.host[g]) {
				m.host[g] = host
				return true
			}
		}
	}
	return false
}

// full reports whether every guest cell has a host cell.
func (m *matching) full() bool { return m.size == len(m.host) }

// Cheapest gives each row a column of its own so that the sum of the costs is
// smallest, by the Hungarian method in O(rows² × columns). A cost of Never is
// never paid: the answer is nil when there is no other way, or when there are
// more rows than columns.
func Cheapest(costs [][]int64) []int {
	rows := len(costs)
	if rows == 0 {
		return []int{}
	}
	columns := len(costs[0])
	if rows > columns {
		return nil
	}
	// Rows and columns count from 1; row 0 is none. u and v are the potentials.
	u, v := make([]int64, rows+1), make([]int64, columns+1)
	owner, from := make([]int, columns+1), make([]int, columns+1)
	least, done := make([]int64, columns+1), make([]bool, columns+1)
	for row := 1; row <= rows; row++ {
		owner[0] = row
		for c := range least {
			least[c], done[c] = farthest, false
		}
		at := 0
		for owner[at] != 0 {
			done[at] = true
			r, next, delta := owner[at], 0, int64(farthest)
			for c := 1; c <= columns; c++ {
				if done[c] {
					continue
				}
				if d := costs[r-1][c-1] - u[r] - v[c]; d < least[c] {
					least[c], from[c] = d, at
				}
				if least[c] < delta {
					delta, next = least[c], c
				}
			}
			for c := 0; c <= columns; c++ {
				if done[c] {
					u[owner[c]] += delta
					v[c] -= delta
				} else {
					least[c] -= delta
				}
			}
			at = next
		}
		for at != 0 {
			owner[at] = owner[from[at]]
			at = from[at]
		}
	}
	answer := make([]int, rows)
	for c := 1; c <= columns; c++ {
		if r := owner[c]; r > 0 {
			if costs[r-1][c-1] >= Never {
				return nil
			}
			answer[r-1] = c - 1
		}
	}
	return answer
}

// Never is the cost of what cannot be; all real costs, summed over the rows, are
// below it.
const Never = int64(1) << 56

const farthest = int64(1) << 62
