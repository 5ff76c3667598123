package checktest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
)

// serveSystemd answers for systemd, or with an error, of which "silent" and "not configured" are known.
func serveSystemd(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	var answer struct {
		systemd.Units

		Error string `json:"error"`
	}
	strictJSON(t, file, &answer)
	err := map[string]error{"": nil, "silent": fmt.Errorf("systemd: %w: read: i/o timeout", systemd.ErrSystemdSilent),
		"not configured": hosterr.ErrNotConfigured}[answer.Error]
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	h.Systemd.Units = func(context.Context) (systemd.Units, error) { return answer.Units, err }
}
