package model

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// checkpointVersion is the version of the format: a header line, and a line for each node.
const checkpointVersion = 1

type header struct {
	Version int    `json:"version"`
	Journal string `json:"journal"`
	Offset  uint64 `json:"offset,string"` // in every node; a node may include later events, see Node.Offset
	Nodes   int    `json:"nodes"`
	Day     *Day   `json:"day,omitempty"` // nil: older versions counted it elsewhere
}

// Save writes a checkpoint and returns its offset. It locks one node at a time, so events can be applied meanwhile. It
// fails if a day ends meanwhile: a checkpoint has the counts of a single day.
func (m *Model) Save(w io.Writer, journalID string) (uint64, error) {
	m.mu.Lock()
	day := m.day
	maps.DeleteFunc(m.nodes, func(_ Key, n *Node) bool { return n.Removed && len(n.Pending) == 0 && n.Day == nil })
	head := header{Version: checkpointVersion, Journal: journalID, Offset: m.offset, Nodes: len(m.nodes)}
	if day != nil {
		present := *day
		head.Day = &present
	}
	keys := slices.SortedFunc(maps.Keys(m.nodes), Key.compare)
	m.mu.Unlock()
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	if err := encoder.Encode(head); err != nil {
		return 0, err
	}
	for _, key := range keys {
		m.mu.RLock()
		line, err := json.Marshal(m.nodes[key])
		m.mu.RUnlock()
		if err != nil {
			return 0, fmt.Errorf("node %q: %w", key.Node, err)
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return 0, err
		}
	}
	if err := out.Flush(); err != nil {
		return 0, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.day != day {
		return 0, errors.New("a day has ended meanwhile")
	}
	return head.Offset, nil
}

// Load reads a checkpoint of a journal. The caller must apply the records after its Offset.
func Load(r io.Reader, journalID string) (*Model, error) {
	decoder := json.NewDecoder(bufio.NewReaderSize(r, 1<<16))
	var head header
	if err := decoder.Decode(&head); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if head.Version != checkpointVersion || head.Journal != journalID {
		return nil, fmt.Errorf("checkpoint of version %d and journal %q, want %d and %q", head.Version, head.Journal,
			checkpointVersion, journalID)
	}
	m := New()
	m.offset, m.day = head.Offset, head.Day
	if m.day != nil {
		if zone, err := time.LoadLocation(m.day.Timezone); err == nil {
			m.Location = zone
		}
	}
	for i := range head.Nodes {
		var n Node
		if err := decoder.Decode(&n); err != nil {
			return nil, fmt.Errorf("checkpoint: node %d of %d: %w", i+1, head.Nodes, err)
		}
		m.nodes[Key{n.Cluster, n.Name}] = &n
		if len(n.Pending) > 0 {
			m.pending[Key{n.Cluster, n.Name}] = true
		}
	}
	return m, nil
}

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, other.Cluster), cmp.Compare(k.Node, other.Node))
}

// Difference is a node whose state does not match the journal.
type Difference struct {
	Cluster    string `json:"cluster"`
	Node       string `json:"node"`
	Checkpoint string `json:"checkpoint"`
	Rebuilt    string `json:"rebuilt"`
}

// Limit keeps the records already applied to each node of m: applied to an earlier model, they must yield m.
func (m *Model) Limit(records []journal.Record) (kept []journal.Record) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, r := range records {
		upTo := m.offset // for a node removed since then
		if n := m.nodes[Key{r.Cluster, r.Node}]; n != nil {
			upTo = n.Offset
		}
		if r.Offset <= upTo {
			kept = append(kept, r)
		}
	}
	return kept
}

// Compare returns the nodes that differ between a checkpoint and a model rebuilt from the journal. It ignores data that
// is not journaled, such as signs of life.
func Compare(checkpoint, rebuilt *Model) (found []Difference) {
	keys := map[Key]bool{}
	for _, m := range []*Model{checkpoint, rebuilt} {
		for key := range m.nodes {
			keys[key] = true
		}
	}
	counts := checkpoint.sameDay(rebuilt)
	for _, key := range slices.SortedFunc(maps.Keys(keys), Key.compare) {
		a, b := checkpoint.derived(key, counts), rebuilt.derived(key, counts)
		if !bytes.Equal(a, b) {
			found = append(found, Difference{key.Cluster, key.Node, string(a), string(b)})
		}
	}
	return found
}

// sameDay reports whether two models count the same events as those of the present day: without an event, the clock may
// have ended it in one of them alone.
func (m *Model) sameDay(o *Model) bool {
	a, b := m.day, o.day
	return a != nil && b != nil && a.Name == b.Name && a.Before == b.Before && a.Lost == b.Lost && a.Began == b.Began
}

// derived returns the part of a node's state that follows from the journal, also its counts of the day if told so.
func (m *Model) derived(key Key, counts bool) []byte {
	n := Node{Cluster: key.Cluster, Name: key.Node}
	there := m.nodes[key]
	if there != nil && !there.Removed {
		n = *there
	}
	var zero Node
	n.Offset = 0 // a node that is there again keeps its predecessor's
	n.LastSeen, n.Ahead, n.Agent, n.AgentType, n.Pending, n.Meta = zero.LastSeen, 0, event.Agent{}, "", nil, Meta{}
	n.Day = nil
	if counts && there != nil && there.Day != nil {
		d := there.Day
		n.Day = &NodeDay{Joined: d.Joined, Removed: d.Removed, Faults: d.Faults, Leftovers: d.Leftovers}
	}
	text, err := json.Marshal(n)
	if err != nil {
		return []byte(err.Error())
	}
	return text
}
