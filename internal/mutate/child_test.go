package mutate

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// A child whose start has hung until its time was up gets no request, and so changes nothing.
func TestRequestIsAwaited(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, want := range []string{"request", ""} {
		data, err := io.ReadAll(awaited(ctx, strings.NewReader("request")))
		if string(data) != want || (want == "") != errors.Is(err, context.Canceled) {
			t.Errorf("%q, %v; want %q", data, err, want)
		}
		cancel()
	}
}
