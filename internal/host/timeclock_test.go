package host_test

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestReadClock(t *testing.T) {
	got, err := host.ReadClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	if got.MaxError < 0 || got.MaxError > time.Hour {
		t.Errorf("%+v", got)
	}
}
