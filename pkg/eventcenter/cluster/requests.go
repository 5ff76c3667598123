package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	workerSubject = "eventcenter.worker.2" // the number is that of the questions' format
	answerLimit   = 10 * time.Second
)

// Ask sends a question to the worker replica, and returns its answer. Both travel as JSON.
func Ask[Q, A any](ctx context.Context, n *Node, question Q) (answer A, err error) {
	text, err := json.Marshal(question)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	m, err := n.Conn.RequestWithContext(ctx, workerSubject, text)
	if errors.Is(err, nats.ErrNoResponders) {
		return answer, errors.New("no replica is the worker now")
	}
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	return answer, err
}

// Answer answers questions until ctx ends, one after the other. If two replicas briefly believe that they are the
// worker, only one gets a question.
func Answer[Q, A any](ctx context.Context, n *Node, answer func(ctx context.Context, question Q) A) error {
	sub, err := n.Conn.QueueSubscribe(workerSubject, workerKey, func(m *nats.Msg) {
		var question Q
		if json.Unmarshal(m.Data, &question) != nil {
			return // not from a replica
		}
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		if text, err := json.Marshal(answer(limited, question)); err == nil {
			_ = m.Respond(text) // if this fails, the other replica asks again
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}
