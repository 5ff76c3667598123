package checks

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// doubtful is a setting, with values of Paths that a default would wrongly give.
type doubtful struct {
	setting host.Setting
	wrong   host.Paths
}

func doubtfulSettings() []doubtful {
	const dir, url = "/not/here", "http://127.0.0.1:1"
	return []doubtful{
		{host.KubeletRoot, host.Paths{KubeletRoot: dir, PluginRegistry: dir}},
		{host.Kubeconfig, host.Paths{Kubeconfig: dir}},
		{host.KubeletHealthz, host.Paths{KubeletHealthz: url}},
		{host.KubeletAPI, host.Paths{KubeletAPI: url}},
		{host.KubeletCAFile, host.Paths{KubeletCAFile: dir}},
		{host.StaticPods, host.Paths{StaticPods: dir}},
		{host.PodLogs, host.Paths{PodLogs: dir}},
		{host.CgroupRoot, host.Paths{CgroupRoot: dir}},
		{host.CRISocket, host.Paths{CRISocket: dir, ContainerdSocket: dir}},
		{host.ContainerdRoot, host.Paths{ContainerdRoot: dir}},
		{host.ContainerdState, host.Paths{ContainerdState: dir}},
		{host.CNIConfDir, host.Paths{CNIConfDir: dir}},
		{host.CNIBinDirs, host.Paths{CNIBinDirs: []string{dir}}},
		{host.NetnsDirs, host.Paths{NetnsDirs: []string{dir}}},
	}
}

// put makes h a node whose setting is in doubt: Paths has a wrong default, and clients refuse.
func (d doubtful) put(h *host.Host) {
	to, from := reflect.ValueOf(&h.Paths).Elem(), reflect.ValueOf(d.wrong)
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	if h.Doubts == nil {
		h.Doubts = host.Doubts{}
	}
	h.Doubts.Add(errors.New("/etc/doubt.yaml: mode 0666"), d.setting)
	h.Refuse()
}

func allDoubtful(h *host.Host) {
	for _, d := range doubtfulSettings() {
		d.put(h)
	}
}

// TestChecksDeclareTheirSettings: if a setting is in doubt and Paths has a wrong default, each check has the same
// result as with the right setting, or says "could not tell" and names the file. It has no fatal finding that it had not.
// So a check that reads a setting without declaring it fails.
func TestChecksDeclareTheirSettings(t *testing.T) {
	need.Nothing(t)
	for _, check := range Checks(DefaultSettings(), Deps{Sources: &detect.StateSources{}}) {
		t.Run(check.ID, func(t *testing.T) {
			for name, run := range nodes(t, check.ID) {
				right := run(t, nil)
				if run(t, allDoubtful).same(right) { // no setting matters to it
					continue
				}
				for _, d := range doubtfulSettings() {
					if got := run(t, d.put); !got.same(right) && !got.doubts() {
						t.Errorf("%s: setting %s in doubt: %v, want %v or the doubt", name, d.setting, got, right)
					} else if extra := got.beyond(right); extra != "" {
						t.Errorf("%s: setting %s in doubt: new fatal finding %s", name, d.setting, extra)
					}
				}
			}
		})
	}
}

type outcome struct {
	findings []string
	err      error
}

func (o outcome) same(other outcome) bool {
	return slices.Equal(o.findings, other.findings) && (o.err == nil) == (other.err == nil) && !o.doubts()
}

func (o outcome) doubts() bool {
	return o.err != nil && strings.Contains(o.err.Error(), "/etc/doubt.yaml: mode 0666")
}

func (o outcome) beyond(other outcome) string {
	for _, f := range o.findings {
		if strings.HasPrefix(f, string(finding.Fatal)) && !slices.Contains(other.findings, f) {
			return f
		}
	}
	return ""
}

// nodes returns runs of a fresh check on its fixtures, and on a healthy node with kubelet and runtime. Spoil changes
// the node before each observation.
func nodes(t *testing.T, id string) map[string]func(t *testing.T, spoil func(*host.Host)) outcome {
	t.Helper()
	all := map[string]func(*testing.T, func(*host.Host)) outcome{
		"healthy node": func(t *testing.T, spoil func(*host.Host)) outcome {
			t.Helper()
			h := hosttest.Host(t)
			if spoil != nil {
				spoil(h)
			}
			return observe(t, fresh(t, id), h)
		},
	}
	if slices.Contains(conversing, id) {
		return all
	}
	for _, kind := range []string{"ok", "bad"} {
		files, err := fixtureFiles(id, kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			all[file] = func(t *testing.T, spoil func(*host.Host)) (last outcome) {
				t.Helper()
				archive, err := txtar.ParseFile(file)
				if err != nil {
					t.Fatal(err)
				}
				h, moments, _ := checktest.FixtureHost(t, archive)
				check := fresh(t, id)
				for _, m := range moments {
					m.Come(t, h)
					if spoil != nil {
						spoil(h)
					}
					last = observe(t, check, h)
				}
				return last
			}
		}
	}
	return all
}

func observe(t *testing.T, check detect.Check, h *host.Host) outcome {
	t.Helper()
	found, err := check.Observe(t.Context(), h)
	if _, absent := errors.AsType[*finding.NotApplicableError](err); absent {
		found, err = append(found, finding.Finding{Reason: "NotApplicable"}), nil
	}
	o := outcome{err: err}
	for _, f := range found {
		o.findings = append(o.findings, fmt.Sprintf("%s %s %s", f.Severity, f.Reason, f.Subject))
	}
	slices.Sort(o.findings)
	return o
}
