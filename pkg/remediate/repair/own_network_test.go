package repair

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/network"
	"github.com/nodeagent/nodeagent/pkg/detect/system"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// The kernel's loopback device and a kernel setting are restored: the check stops finding the fault. If they are
// removed again at once, the repair has failed, and the next one waits.
func TestRepairOwnNetwork(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	const forward = "/proc/sys/net/ipv4/ip_forward"
	sysctls := system.DefaultSysctlsSettings()
	sysctls.Want, sysctls.Kubernetes = map[string]string{"net.ipv4.ip_forward": "1"}, false
	for _, test := range []struct {
		action Name
		reason string
		check  func() detect.Check
		spoil  func() error
	}{
		{"restore-loopback", "LoopbackWithoutAddress", network.Loopback, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			addresses, err := netlink.AddrList(lo, netlink.FAMILY_V4)
			for i := range addresses {
				err = errors.Join(err, netlink.AddrDel(lo, &addresses[i]))
			}
			return err
		}},
		{"restore-sysctl", "SysctlDrift", func() detect.Check { return system.Sysctls(sysctls) },
			func() error { return os.WriteFile(forward, []byte("0\n"), 0) }},
	} {
		for _, again := range []bool{false, true} {
			dir := t.TempDir()
			h := &host.Host{Paths: host.Paths{InitPID: os.Getpid()}, Clock: host.Now, Network: host.NewNetwork()}
			m, err := mutate.New(h, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			settings := Defaults()
			settings.Actions[test.action] = release.On
			settings.Sysctls, settings.SysctlFile = sysctls.Want, checkkit.SysctlFile
			settings.VerifyWithin, settings.Hold = 100*time.Millisecond, 100*time.Millisecond
			releases := release.Defaults()
			releases.KillSwitch, releases.Lock = filepath.Join(dir, "stop"), filepath.Join(dir, "lock")
			check := test.check()
			look := func(ctx context.Context) finding.Observation {
				found, err := check.Run(ctx, h)
				return finding.Observation{Check: check.ID, At: h.Clock(), Findings: found, Err: err}
			}
			r, err := New(Options{Settings: settings, Releases: releases, Host: h, Mutator: m,
				Log: slog.New(slog.DiscardHandler), StateDir: dir,
				Observe: func(ctx context.Context, _ string) (finding.Observation, error) {
					if again {
						if err := test.spoil(); err != nil {
							return finding.Observation{}, err
						}
					}
					return look(ctx), nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			if err := test.spoil(); err != nil {
				t.Fatal(err)
			}
			state := finding.State{check.ID: {Subjects: map[string]*finding.Believed{}}}
			raised := h.Clock()
			raised.SinceBoot -= time.Hour
			for _, f := range look(t.Context()).Findings {
				if f.Reason == test.reason {
					f.Check = check.ID
					state[check.ID].Subjects[f.Subject.Name] = &finding.Believed{Finding: f, ID: "a", Raised: raised}
				}
			}
			if len(state[check.ID].Subjects) != 1 {
				t.Fatalf("%s: %+v", test.action, look(t.Context()))
			}
			r.Update(state, nil)
			found := time.Now()
			r.round(t.Context())
			took := time.Since(found) - settings.Hold
			r.round(t.Context()) // this one waits
			status := r.Status()
			want, blocked := ": verified", ""
			if again {
				want, blocked = ": failed: the fault is still there", "next try after"
			}
			if len(status.Last) != 1 || !strings.Contains(status.Last[0], want) || len(status.Steps) != 1 ||
				again && !strings.Contains(status.Steps[0].Blocked, blocked) {
				t.Errorf("%s, spoiled again %t: %q, %+v", test.action, again, status.Last, status.Steps)
			}
			if !again {
				t.Logf("repaired by %s in %s", test.action, took.Round(time.Millisecond))
			}
			if here := len(look(t.Context()).Findings) > 0; here != again {
				t.Errorf("%s, spoiled again %t: found %t", test.action, again, here)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
