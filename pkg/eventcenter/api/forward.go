package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Forwarded is a request about subscriptions, forwarded to the delivering replica. The first replica has already
// authenticated and authorized it.
type Forwarded struct {
	Method string      `json:"method"`
	URI    string      `json:"uri"`
	Body   []byte      `json:"body,omitempty"`
	Who    deliver.Who `json:"who"`
}

// Answer is the response to a forwarded request.
type Answer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// forwarded is a context key that marks a forwarded request: it is not forwarded again.
type forwarded struct{}

// forward lets another replica answer.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, who web.Identity) {
	ask := notNow(http.StatusServiceUnavailable, "another replica of this center delivers, or will soon: ask again", time.Second)
	if s.Forward == nil || r.Context().Value(forwarded{}) != nil {
		s.fail(w, r, ask)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSubscription))
	if err != nil {
		s.fail(w, r, refused(http.StatusBadRequest, err.Error()))
		return
	}
	a, err := s.Forward(r.Context(), Forwarded{r.Method, r.URL.RequestURI(), body, whoOf(who)})
	if err != nil {
		if !isGone(r) {
			s.Log.Warn("forward a request about subscriptions failed", "err", err)
		}
		s.fail(w, r, ask)
		return
	}
	for _, name := range []string{"Content-Type", "Retry-After"} {
		if value := a.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// Answer answers a request forwarded by another replica, but only one about subscriptions.
func (s *Server) Answer(ctx context.Context, f Forwarded) Answer {
	a := answered{Answer{Status: http.StatusOK, Header: http.Header{}}}
	r, err := http.NewRequestWithContext(context.WithValue(ctx, forwarded{}, f.Who), f.Method, f.URI,
		bytes.NewReader(f.Body))
	if err != nil {
		respond(&a, http.StatusBadRequest, map[string]string{"error": quote(err)})
		return a.Answer
	}
	s.deliveries.ServeHTTP(&a, r)
	return a.Answer
}

// answered is a response writer that keeps the response.
type answered struct{ Answer }

func (a *answered) Header() http.Header { return a.Answer.Header }

func (a *answered) WriteHeader(status int) { a.Status = status }

func (a *answered) Write(data []byte) (int, error) {
	a.Body = append(a.Body, data...)
	return len(data), nil
}
