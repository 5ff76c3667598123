package host_test

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func TestTailAndHead(t *testing.T) {
	h := hosttest.Host(t)
	layOut(t, h, "log", "0123456789")
	for most, want := range map[int64]string{3: "789", 10: "0123456789", 99: "0123456789"} {
		data, size, err := h.Files.Tail("/log", most)
		if err != nil || string(data) != want || size != 10 {
			t.Errorf("last %d: %q of %d, %v", most, data, size, err)
		}
	}
	if data, err := h.Files.Head("/log", 3); err != nil || string(data) != "012" {
		t.Errorf("first 3: %q, %v", data, err)
	}
	if _, _, err := h.Files.Tail("/none", 1); err == nil {
		t.Error("want an error")
	}
}
