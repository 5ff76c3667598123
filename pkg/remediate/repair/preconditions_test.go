package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The needs of an action are checked when it is planned: if one is not met, there is no intent and so no attempt.
func TestPreconditionsAreAskedInTheLook(t *testing.T) {
	module := func(n *unitNode) (Action, finding.Finding) {
		n.tools.Settings.Modules = []string{"br-netfilter"}
		return loadModule(), finding.Finding{Subject: finding.Subject{Name: "br_netfilter"}}
	}
	sysctl := func(name, value string) func(n *unitNode) (Action, finding.Finding) {
		return func(n *unitNode) (Action, finding.Finding) {
			n.tools.Settings.Sysctls, n.tools.Settings.SysctlFile = map[string]string{name: value}, checkkit.SysctlFile
			if name == "vm.swappiness" {
				hosttest.WriteHostFile(n.t, n.tools.Host, checkkit.SysctlFile(name), "60\n")
			}
			return restoreSysctl(), finding.Finding{Subject: finding.Subject{Name: name}}
		}
	}
	loads := func(state string, err error) func(n *unitNode) {
		return func(n *unitNode) {
			n.tools.Host.Systemd.LoadState = func(context.Context, string) (string, error) { return state, err }
		}
	}
	for name, test := range map[string]struct {
		of      func(n *unitNode) (Action, finding.Finding)
		change  func(n *unitNode)
		want    string
		unknown bool // whether it is met is unknown, which is no refusal
	}{
		"a module, and no systemd":         {module, loads("", hosterr.ErrNotConfigured), "systemd", false},
		"a module, systemd does not say":   {module, loads("", errOutage), "no answer", true},
		"a module, an old systemd":         {module, loads("not-found", nil), "modprobe@br_netfilter.service is not-found", false},
		"a module, and the unit is masked": {module, loads("masked", nil), "is masked", false},
		"a module, and no more are loaded": {module, func(n *unitNode) {
			loads("loaded", nil)(n)
			hosttest.WriteHostFile(n.t, n.tools.Host, "/proc/sys/kernel/modules_disabled", "1\n")
		}, "modules_disabled", false},
		"a module of a kernel without modules on the disk": {module, func(n *unitNode) {
			loads("loaded", nil)(n)
			hosttest.WriteHostFile(n.t, n.tools.Host, "/proc/sys/kernel/osrelease", "6.1.0-gone\n")
		}, "/lib/modules/6.1.0-gone", false},
		"a setting of two lines": {sysctl("vm.swappiness", "1\n2"), func(*unitNode) {}, "one line", false},
		"a setting that is no setting": {sysctl("nodeagent.none", "1"), func(n *unitNode) {
			hosttest.WriteHostFile(n.t, n.tools.Host, "/proc/sys/vm/swappiness", "60\n")
		}, "does not exist", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUnitNode(t)
			action, f := test.of(n)
			test.change(n)
			_, err := action.Examine(t.Context(), n.tools, f)
			_, refused := errors.AsType[mutate.Refusal](err)
			if err == nil || refused == test.unknown || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, refused %v, want %q", err, refused, test.want)
			}
		})
	}
}

// A step that did not begin has not failed, whatever the reason: repairs go on.
func TestWhatWasNotBegunIsNoFailure(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		failed bool
	}{
		"refused":                {mutate.Refusal{Why: "no"}, false},
		"another object":         {fmt.Errorf("x: %w", mutate.ErrChanged), false},
		"in use":                 {fmt.Errorf("x: %w", mutate.ErrBusy), false},
		"no child can be begun":  {fmt.Errorf("x: %w", mutate.ErrTooManyAbandoned), false},
		"not on this node":       {fmt.Errorf("x: %w", hosterr.ErrNotConfigured), false},
		"the step itself failed": {errOutage, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.settings.PerHour, w.settings.PerDay, w.settings.RestartsPerDay = 100, 100, 100
				w.does, w.faulty = func(context.Context) error { return test.err }, func() bool { return true }
				for range w.settings.StopAfter {
					w.round(t.Context())
					time.Sleep(8 * time.Hour / 3)
				}
				stops := stopped(attempts(w.records()), w.settings, w.now()) != ""
				if w.done != w.settings.StopAfter || stops != test.failed {
					t.Errorf("done %d times, stopped: %v", w.done, stops)
				}
			})
		})
	}
}

func (w *world) records() []Record {
	records, _, err := ReadJournal(w.dir + "/state")
	if err != nil {
		w.t.Fatal(err)
	}
	return records
}
