package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	workerSubject = "eventcenter.worker"
	answerLimit   = 10 * time.Second
)

// ErrNoWorker means that no replica is the worker now.
var ErrNoWorker = errors.New("no replica is the worker now")

// Ask sends a question to the worker replica, and returns its answer.
func (n *Node) Ask(ctx context.Context, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	m, err := n.Conn.RequestWithContext(ctx, workerSubject, question)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, ErrNoWorker
	}
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// Answer answers questions until ctx ends, one after the other. If two replicas briefly believe that they are the
// worker, only one gets a question.
func (n *Node) Answer(ctx context.Context, answer func(ctx context.Context, question []byte) []byte) error {
	sub, err := n.Conn.QueueSubscribe(workerSubject, workerKey, func(m *nats.Msg) {
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		_ = m.Respond(answer(limited, m.Data)) // if this fails, the other replica asks again
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}
