package detect_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// TestSettingsInDoubt: a check with a setting in doubt does not run and names the file; a check that uses the setting
// only for a part adds the reason to its findings; a check that does not use it is not affected.
func TestSettingsInDoubt(t *testing.T) {
	h := &host.Host{Doubts: host.Doubts{host.CRISocket: errors.New("/etc/x.toml: mode 0666")}}
	found := []finding.Finding{{Reason: "Fault"}}
	for name, test := range map[string]struct {
		check  detect.Check
		err    error // of the run
		found  int
		doubt  bool
		absent bool
	}{
		"uses":              {check: detect.Check{Uses: []host.Setting{host.PodLogs, host.CRISocket}}, doubt: true},
		"uses partly":       {check: detect.Check{UsesPartly: []host.Setting{host.CRISocket}}, found: 1, doubt: true},
		"uses another":      {check: detect.Check{Uses: []host.Setting{host.PodLogs}}, found: 1},
		"uses none":         {found: 1},
		"is not applicable": {check: detect.Check{UsesPartly: []host.Setting{host.CRISocket}}, err: finding.NotApplicable("x"), found: 1, absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			test.check.Run = func(context.Context, *host.Host) ([]finding.Finding, error) { return found, test.err }
			got, err := test.check.Observe(t.Context(), h)
			if len(got) != test.found || errors.Is(err, hosterr.ErrDoubt) != test.doubt {
				t.Errorf("%v, %v", got, err)
			}
			if test.doubt && !strings.Contains(err.Error(), "/etc/x.toml: mode 0666") {
				t.Errorf("the file is not named: %v", err)
			}
			if _, absent := errors.AsType[*finding.NotApplicableError](err); absent != test.absent {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestAdvice: messages and advice name the units of the node's distribution.
func TestAdvice(t *testing.T) {
	check := detect.Check{Advice: "`journalctl -u kubelet -u containerd`",
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			return []finding.Finding{{Message: "start it with `systemctl start kubelet`"}}, nil
		}}
	for _, test := range []struct {
		node            distro.Node
		message, advice string
	}{
		{distro.Node{}, "systemctl start kubelet`", ""},
		{distro.Node{ID: "k3s", Unit: "k3s-agent"}, "systemctl start k3s-agent`", "`journalctl -u k3s-agent -u k3s-agent`"},
		{distro.Node{ID: "microk8s"}, "systemctl start snap.microk8s.daemon-kubelite`",
			"`journalctl -u snap.microk8s.daemon-kubelite -u snap.microk8s.daemon-containerd`"},
		{distro.Node{ID: "rke1"}, "`docker start kubelet`", "`docker logs kubelet`, `journalctl -u docker`"},
	} {
		found, err := check.Observe(t.Context(), &host.Host{Node: test.node})
		if err != nil || !strings.Contains(found[0].Message, test.message) {
			t.Errorf("%+v: %q, %v", test.node, found[0].Message, err)
		}
		if got := found[0].Facts["advice"]; got != test.advice {
			t.Errorf("%+v: advice %q, want %q", test.node, got, test.advice)
		}
	}
}
