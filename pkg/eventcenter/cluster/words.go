package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

const (
	wordsSubject = "eventcenter.words"
	wordsEvery   = 3 * time.Second // a node's signs of life are sent once in it
)

// Words distributes agents' signs of life to the other replicas. They are not journaled: if one is lost, the next
// interval brings another.
type Words struct {
	Node  *Node
	Model *model.Model
	Log   *slog.Logger

	mu    sync.Mutex // guards the fields below
	began time.Time  // of the present interval
	sent  map[model.Key]bool
}

type word struct {
	Cluster string      `json:"cluster"`
	Node    string      `json:"node"`
	At      time.Time   `json:"at"`
	SentAt  time.Time   `json:"said,omitzero"` // by the node's clock
	Agent   event.Agent `json:"agent"`
}

// RecordAlive records a sign of life that an agent sent to this replica, and sends it to the others, but only the first
// of a node in each interval.
func (w *Words) RecordAlive(key model.Key, agent event.Agent, sentAt, at time.Time) {
	w.Model.RecordAlive(key, agent, sentAt, at)
	if !w.first(key, at) {
		return
	}
	data, err := json.Marshal([]word{{key.Cluster, key.Node, at, sentAt, agent}})
	if err == nil {
		err = w.Node.Conn.Publish(wordsSubject, data)
	}
	if err != nil { // the connection logs that it is lost
		w.Log.Debug("send a sign of life to other replicas failed", "err", err)
	}
}

// first reports whether a sign of life is a node's first in this interval.
func (w *Words) first(key model.Key, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at.Sub(w.began) >= wordsEvery {
		w.began, w.sent = at, map[model.Key]bool{}
	}
	known := w.sent[key]
	w.sent[key] = true
	return !known
}

// Run receives signs of life until ctx ends.
func (w *Words) Run(ctx context.Context) error {
	sub, err := w.Node.Conn.Subscribe(wordsSubject, w.take)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}

// take records signs of life received by other replicas. This replica gets its own back too, without effect.
func (w *Words) take(m *nats.Msg) {
	var some []word
	if err := json.Unmarshal(m.Data, &some); err != nil {
		w.Log.Warn("read signs of life from another replica failed", "err", err)
		return
	}
	for _, one := range some {
		w.Model.RecordAlive(model.Key{Cluster: one.Cluster, Node: one.Node}, one.Agent, one.SentAt, one.At)
	}
}
