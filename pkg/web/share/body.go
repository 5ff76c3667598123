package share

import (
	"errors"
	"io"
	"net/http"
	"time"
)

const (
	bodyGrace = 10 * time.Second // for a body to start, and to end
	bodyRate  = 32 << 10         // bytes per second required beyond that
)

// Body enforces a minimum rate for a request's body: a slower client is disconnected, whether the handler reads the
// body or not.
func Body(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	b := &body{ReadCloser: r.Body, out: http.NewResponseController(w), begun: time.Now()}
	b.limit(b.begun.Add(bodyGrace))
	r.Body = b
}

type body struct {
	io.ReadCloser
	out   *http.ResponseController
	begun time.Time
	bytes int64
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	switch {
	case errors.Is(err, io.EOF):
		b.limit(time.Time{}) // the next request follows
	case n > 0:
		b.limit(b.begun.Add(bodyGrace + time.Duration(b.bytes)*time.Second/bodyRate))
	}
	return n, err
}

func (b *body) limit(at time.Time) {
	_ = b.out.SetReadDeadline(at) // a request without a connection has none
}
