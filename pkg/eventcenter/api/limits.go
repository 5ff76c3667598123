package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

const (
	// busyWait is how long a request waits for others. It is half of the senders' timeout: the sender would repeat work
	// that the center finishes later, and more and more work would be wasted.
	busyWait = 5 * time.Second

	// chunk is how many bytes of a body are read at a time, and the least that a request counts while it is stored.
	chunk       = 64 << 10
	maxNodeBody = 1 << 20 // bytes; an agent sends less
)

// shares divide common resources among senders.
type shares struct {
	// bodies are bytes of requests being read, decoded and stored. Nodes have their own: no other sender takes them.
	bodies, nodeBodies *share.Amounts

	streams  *share.Amounts
	requests *share.Rates // of a node, per second
	sources  *share.Rates // events of a source, per second
	compute  *share.Rates // microseconds of a reader's expressions, per second
	all      *rate.Limiter
}

func newShares(l Limits) *shares {
	return &shares{bodies: share.NewAmounts(maxBody+chunk, l.Bytes), nodeBodies: share.NewAmounts(2*maxNodeBody, l.Bytes),
		streams:  share.NewAmounts(int64(l.OwnStreams), int64(l.Streams)),
		requests: share.NewRates(l.NodeRequests, l.NodeRequestsBurst),
		sources:  share.NewRates(l.SourceRate, l.SourceBurst),
		compute:  share.NewRates(100_000, 100_000), // a tenth of a core
		all:      rate.NewLimiter(rate.Limit(l.Rate), l.Burst)}
}

// keyOf returns whose share a request uses: the proven identity, never a claimed one.
func keyOf(i web.Identity) string {
	return i.By + "/" + i.Cluster + "/" + cmp.Or(i.Node, i.Name) + "/" + i.Detector
}

// read reads a body. It counts bytes when they arrive, not when they are announced; done releases them.
func (s *Server) read(r *http.Request, who web.Identity) (body []byte, done func(), err error) {
	bodies, most, key, taken := s.shares.bodies, int64(maxBody), keyOf(who), int64(0)
	if who.Node != "" {
		bodies, most = s.shares.nodeBodies, maxNodeBody
	}
	done = func() { bodies.Give(key, taken) }
	take := func(n int64) error {
		ctx, cancel := context.WithTimeout(r.Context(), busyWait)
		defer cancel()
		if n > 0 && !bodies.Wait(ctx, key, n) {
			if !isGone(r) {
				s.metrics.limited.WithLabelValues("busy").Inc()
			}
			// The agent must neither try another center nor send all of its state again: hence 429.
			reason := "too many requests at the same time"
			if ctx.Err() == nil {
				reason = "too many requests of this sender at the same time"
			}
			return notNow(http.StatusTooManyRequests, reason, 10*time.Second)
		}
		taken += max(n, 0)
		return nil
	}
	var all bytes.Buffer
	part := make([]byte, 4<<10)
	for err == nil && r.ContentLength <= most && int64(all.Len()) <= most {
		var n int
		n, err = r.Body.Read(part)
		if short := int64(all.Len()+n) - taken; short > 0 {
			if err := take(max(short, chunk)); err != nil {
				return nil, done, err
			}
		}
		all.Write(part[:n])
	}
	switch {
	case err == nil || int64(all.Len()) > most:
		return nil, done, refused(http.StatusRequestEntityTooLarge, fmt.Sprintf("%d bytes are possible", most))
	case errors.Is(err, os.ErrDeadlineExceeded): // 400 would mean that its events are never accepted
		return nil, done, notNow(http.StatusRequestTimeout, "the body comes too slowly", 30*time.Second)
	case !errors.Is(err, io.EOF):
		return nil, done, refused(http.StatusBadRequest, "the body ends early")
	}
	return all.Bytes(), done, take(chunk - taken)
}
