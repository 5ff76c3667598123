package eventcenter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// aliveHeader is the interval at which a center wants agent.alive, in seconds.
const aliveHeader = "Nodeagent-Alive-Seconds"

const requestLimit = 10 * time.Second

// The bounds of aliveHeader.
const (
	minAlive     = 10 * time.Second
	maxAlive     = time.Hour
	defaultAlive = time.Minute
)

// code returns the status code of a refusal; 0 if there was no answer.
func code(err error) int {
	if r, ok := errors.AsType[*event.RefusedError](err); ok {
		return r.Status
	}
	return 0
}

// post sends a request to the endpoint in use, or, if it is away, to the others in their order.
func (r *Reporter) post(ctx context.Context, m event.Message) error {
	s, err := r.credentials.get(ctx)
	if err != nil {
		return err
	}
	inUse, all := int(r.endpoint.Load()), r.config.Settings.Endpoints
	order := []int{inUse}
	for i := range all {
		if i != inUse {
			order = append(order, i)
		}
	}
	var problems []error
	for _, at := range order {
		err := r.postTo(ctx, s, all[at], m)
		if err == nil || !away(err) {
			r.endpoint.Store(int64(at))
			return err
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	r.endpoint.Store(0)
	return errors.Join(problems...)
}

// away reports whether another endpoint may give a different answer.
func away(err error) bool {
	c := code(err)
	return c == 0 || c >= 500 || c == http.StatusNotFound || c == http.StatusRequestTimeout || c >= 300 && c < 400
}

func (r *Reporter) postTo(ctx context.Context, s *session, endpoint string, m event.Message) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(m.Body))
	if err != nil {
		return err
	}
	request.Header = m.Header.Clone()
	request.Header.Set("User-Agent", "nodeagent/"+cmp.Or(r.config.Version, "unknown"))
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	header, err := event.Send(s.client, request)
	if err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	r.adoptInterval(header)
	return nil
}

// adoptInterval takes the interval of agent.alive from an answer.
func (r *Reporter) adoptInterval(header http.Header) {
	seconds, err := strconv.Atoi(header.Get(aliveHeader))
	if err == nil && seconds > 0 {
		r.alive = min(max(time.Duration(min(seconds, 1<<20))*time.Second, minAlive), maxAlive)
	}
}
