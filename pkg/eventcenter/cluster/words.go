package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

const wordsSubject = "eventcenter.words"

// Words distributes agents' signs of life to the other replicas. They are not journaled: if one is lost, the next
// interval brings another.
type Words struct {
	Node  *Node
	Model *model.Model
	Log   *slog.Logger
}

type word struct {
	Cluster string      `json:"cluster"`
	Node    string      `json:"node"`
	At      time.Time   `json:"at"`
	SentAt  time.Time   `json:"said,omitzero"` // by the node's clock
	Agent   event.Agent `json:"agent"`
}

// RecordAlive records a sign of life that an agent sent to this replica, and sends it to the others.
func (w *Words) RecordAlive(key model.Key, agent event.Agent, sentAt, at time.Time) {
	w.Model.RecordAlive(key, agent, sentAt, at)
	data, err := json.Marshal([]word{{key.Cluster, key.Node, at, sentAt, agent}})
	if err == nil {
		err = w.Node.Conn.Publish(wordsSubject, data)
	}
	if err != nil { // the connection logs that it is lost
		w.Log.Debug("send a sign of life to other replicas failed", "err", err)
	}
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
