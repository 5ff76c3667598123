package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func TestDoubts(t *testing.T) {
	why := errors.New("/var/lib/kubelet/config.yaml: mode 0664")
	d := host.Doubts{}
	d.Add(why, host.CRISocket, host.PodLogs)
	d.Add(errors.New("later"), host.CRISocket)
	err := d.Of(host.CRISocket, host.PodLogs)
	if !errors.Is(err, hosterr.ErrDoubt) || strings.Count(err.Error(), "mode 0664") != 1 ||
		strings.Contains(err.Error(), "later") {
		t.Error(err)
	}
	if err := d.Of(host.CNIConfDir); err != nil {
		t.Error(err)
	}
	if d.Of() == nil || (host.Doubts{}).Of() != nil || host.Doubts(nil).Of(host.CRISocket) != nil {
		t.Error("Of without settings looks at all")
	}
	host.Doubts(nil).Add(why, host.CRISocket)
	if d.Equal(host.Doubts{}) || !d.Equal(host.Doubts{host.CRISocket: why, host.PodLogs: why}) {
		t.Error("Equal compares reasons")
	}
}

// TestRefuse: a client whose address is in doubt fails with the reason, without a request; others are called.
func TestRefuse(t *testing.T) {
	asked := 0
	h := &host.Host{Doubts: host.Doubts{host.KubeletAPI: errors.New("FILE"), host.CRISocket: errors.New("FILE")}}
	h.Kubelet.Healthz = func(context.Context) (string, error) { asked++; return "ok", nil }
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { asked += 10; return nil, nil }
	h.Runtime.HasImage = func(context.Context, string) (bool, error) { asked += 10; return true, nil }
	h.Refuse()
	if body, err := h.Kubelet.Healthz(t.Context()); err != nil || body != "ok" {
		t.Error(body, err)
	}
	if _, err := h.Kubelet.Pods(t.Context()); !errors.Is(err, hosterr.ErrDoubt) {
		t.Error(err)
	}
	if has, err := h.Runtime.HasImage(t.Context(), "x"); has || !errors.Is(err, hosterr.ErrDoubt) {
		t.Error(has, err)
	}
	if asked != 1 || h.Runtime.Status != nil {
		t.Errorf("asked %d, or a client came from nowhere", asked)
	}
}
