package kernel

import "slices"

// automaton finds which of many literals occur in a text, in one pass over it and whatever their number (Aho and Corasick,
// 1975), as a complete table: one look-up for each byte, no backtracking, no allocation.
type automaton struct {
	class     [256]uint16 // bytes that no literal contains share class 0
	next      []uint32    // state + class of the byte gives the next state; states are multiples of the number of classes
	accepting uint32      // states from here on end a literal
	found     []set       // of the accepting states
	classes   uint32
}

// set is a set of rules, by their position in the table; recoveries follow the rules.
type set [4]uint64

const setSize = len(set{}) * 64

func (s *set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s *set) join(other *set) {
	s[0] |= other[0]
	s[1] |= other[1]
	s[2] |= other[2]
	s[3] |= other[3]
}
func (s *set) empty() bool         { return *s == set{} }
func (s *set) equal(o set) bool    { return *s == o }
func (s *set) union(o set) (u set) { u = *s; u.join(&o); return u }

// node is a state while the table is being built.
type node struct {
	children map[byte]int
	fail     int
	found    set
}

// newAutomaton builds the table for literals; owners tells for each to which rules it belongs.
func newAutomaton(literals map[string]set) *automaton {
	trie := []node{{children: map[byte]int{}}}
	texts := make([]string, 0, len(literals))
	for text := range literals {
		texts = append(texts, text)
	}
	slices.Sort(texts) // the same table each time
	for _, text := range texts {
		at := 0
		for i := range len(text) {
			child, ok := trie[at].children[text[i]]
			if !ok {
				child = len(trie)
				trie = append(trie, node{children: map[byte]int{}})
				trie[at].children[text[i]] = child
			}
			at = child
		}
		trie[at].found = trie[at].found.union(literals[text])
	}
	return tabulate(trie, link(trie), texts)
}

// link sets the failure links, each to the longest ending of a state's text that begins a literal, and returns the states
// with the shorter texts first.
func link(trie []node) (order []int) {
	order = append(order, 0)
	for i := 0; i < len(order); i++ {
		for b, child := range trie[order[i]].children {
			order = append(order, child)
			if order[i] == 0 {
				continue
			}
			fail := trie[order[i]].fail
			for {
				if other, ok := trie[fail].children[b]; ok {
					trie[child].fail = other
					break
				}
				if fail == 0 {
					break
				}
				fail = trie[fail].fail
			}
		}
	}
	for _, at := range order[1:] {
		trie[at].found = trie[at].found.union(trie[trie[at].fail].found)
	}
	return order
}

// tabulate writes the complete table. Accepting states get the highest numbers, so that one comparison tells them.
func tabulate(trie []node, order []int, texts []string) *automaton {
	a := &automaton{classes: 1}
	for _, text := range texts {
		for i := range len(text) {
			if b := text[i]; a.class[b] == 0 {
				a.class[b] = uint16(a.classes)
				a.classes++
			}
		}
	}
	number := make([]uint32, len(trie))
	count := uint32(0)
	for _, accepting := range []bool{false, true} {
		if accepting {
			a.accepting = count * a.classes
		}
		for _, at := range order {
			if trie[at].found.empty() != accepting {
				number[at] = count * a.classes
				count++
				if accepting {
					a.found = append(a.found, trie[at].found)
				}
			}
		}
	}
	a.next = make([]uint32, count*a.classes)
	for _, at := range order { // a state's failure link comes before it, so its row is complete
		row := a.next[number[at]:][:a.classes]
		if at != 0 {
			copy(row, a.next[number[trie[at].fail]:][:a.classes])
		}
		for b, child := range trie[at].children {
			row[a.class[b]] = number[child]
		}
	}
	return a
}

// find returns the owners of all literals that occur in text.
func (a *automaton) find(text []byte) (found set) {
	state := uint32(0)
	next, class := a.next, &a.class
	for _, b := range text {
		state = next[state+uint32(class[b])]
		if state >= a.accepting {
			found.join(&a.found[(state-a.accepting)/a.classes])
		}
	}
	return found
}
