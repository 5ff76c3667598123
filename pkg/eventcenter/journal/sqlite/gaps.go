package sqlite

import (
	"cmp"
	"slices"
	"sort"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// addGap records offsets that cannot be read, each once.
func (s *Store) addGap(g journal.Gap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range slices.Clone(s.gaps) {
		if known.To < g.From {
			continue
		}
		if known.From > g.To {
			break
		}
		s.insertGap(journal.Gap{From: g.From, To: known.From - 1, Reason: g.Reason})
		g.From = known.To + 1
	}
	s.insertGap(g)
}

// insertGap needs mu.
func (s *Store) insertGap(g journal.Gap) {
	if g.From > g.To {
		return
	}
	s.Log.Error("read a part of the journal failed", "from", g.From, "to", g.To, "reason", g.Reason)
	at, _ := slices.BinarySearchFunc(s.gaps, g, func(a, b journal.Gap) int { return cmp.Compare(a.From, b.From) })
	if at > 0 && s.gaps[at-1].To+1 == g.From && s.gaps[at-1].Reason == g.Reason {
		s.gaps[at-1].To = g.To
		return
	}
	s.gaps = slices.Insert(s.gaps, at, g)
}

// gapAt returns the known gap that an offset is in.
func (s *Store) gapAt(offset uint64) (g journal.Gap, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].To >= offset })
	if at == len(s.gaps) || s.gaps[at].From > offset {
		return g, false
	}
	return s.gaps[at], true
}

// gapsWithin returns the parts of gaps beyond after, up to next.
func (s *Store) gapsWithin(after, next uint64) []journal.Gap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return within(s.gaps, after, next)
}

func within(gaps []journal.Gap, after, next uint64) (found []journal.Gap) {
	for _, g := range gaps {
		if g.To > after && g.From <= next {
			g.From, g.To = max(g.From, after+1), min(g.To, next)
			found = append(found, g)
		}
	}
	return found
}
