package checks

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// settings are the settings of the node, each with the fields of host.Paths that depend on it.
var settings = map[host.Setting][]string{
	host.KubeletRoot: {"KubeletRoot", "PluginRegistry"}, host.Kubeconfig: {"Kubeconfig"}, host.KubeletHealthz: {"KubeletHealthz"},
	host.KubeletAPI: {"KubeletAPI"}, host.KubeletCAFile: {"KubeletCAFile"}, host.StaticPods: {"StaticPods"}, host.PodLogs: {"PodLogs"},
	host.CgroupRoot: {"CgroupRoot"}, host.CRISocket: {"CRISocket", "ContainerdSocket"}, host.ContainerdRoot: {"ContainerdRoot"},
	host.ContainerdState: {"ContainerdState"}, host.CNIConfDir: {"CNIConfDir"}, host.CNIBinDirs: {"CNIBinDirs"}, host.NetnsDirs: {"NetnsDirs"},
}

var errUnread = errors.New("/etc/some/config: mode 0666, others can change it")

// doubt puts settings in doubt: their values are defaults that are wrong on this node.
func doubt(h *host.Host, of ...host.Setting) {
	h.Doubts = host.Doubts{}
	paths := reflect.ValueOf(&h.Paths).Elem()
	for _, setting := range of {
		h.Doubts.Add(errUnread, setting)
		for _, name := range settings[setting] {
			switch field := paths.FieldByName(name); field.Kind() {
			case reflect.String:
				field.SetString("/wrong/default")
			default:
				field.Set(reflect.ValueOf([]string{"/wrong/default"}))
			}
		}
	}
	h.Refuse()
}

// TestSettingsInDoubt: if a setting of the node is in doubt, each check gives the same result as without the doubt, or says
// that it could not tell, with the file. It reports no fatal fault that it did not report before. A check that forgets to declare
// a setting that it uses fails here.
func TestSettingsInDoubt(t *testing.T) {
	need.Nothing(t)
	for _, check := range Checks(DefaultSettings(), Deps{}) {
		if slices.Contains(conversing, check.ID) {
			continue
		}
		files, err := fixtureFiles(check.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasPrefix(filepath.Base(file), "broken") {
				continue // it could not tell before
			}
			observe := func(of ...host.Setting) ([]finding.Finding, error) {
				c := fresh(t, check.ID)
				c.Suggest = nil
				return checktest.ObserveFixture(t, c, file, func(h *host.Host) { doubt(h, of...) })
			}
			name := check.ID + "/" + filepath.Base(file)
			before, beforeErr := observe()
			all, allErr := observe(slices.Collect(maps.Keys(settings))...)
			if same(before, beforeErr, all, allErr) {
				continue // it uses none of them
			}
			for setting := range settings {
				found, err := observe(setting)
				if problem := judge(before, beforeErr, found, err); problem != "" {
					t.Errorf("%s: with %s in doubt: %s", name, setting, problem)
				}
			}
		}
	}
}

func same(a []finding.Finding, aErr error, b []finding.Finding, bErr error) bool {
	return slices.Equal(identities(a), identities(b)) && text(aErr) == text(bErr)
}

// text returns the text of an error, without the folder of its machine.
func text(err error) string { return machines.ReplaceAllString(fmt.Sprint(err), "") }

var machines = regexp.MustCompile(`/[^ ]*/TestSettingsInDoubt\d+/\d+`)

func identities(found []finding.Finding) (all []string) {
	for _, f := range found {
		all = append(all, fmt.Sprint(f.Reason, f.Subject, f.Severity))
	}
	return all
}

// judge returns the problem of a result with a setting in doubt; empty: none. filesystem-readonly takes a pod for a living
// one if kubelet cannot be asked: the filesystem has turned read-only for certain, and pods hold mounts of it.
func judge(before []finding.Finding, beforeErr error, found []finding.Finding, err error) string {
	if same(before, beforeErr, found, err) {
		return ""
	}
	for _, f := range found {
		if f.Severity == finding.Fatal && f.Check != "filesystem-readonly" && !slices.Contains(identities(before), identities([]finding.Finding{f})[0]) {
			return fmt.Sprintf("a fatal fault appears: %s %s", f.Reason, f.Subject)
		}
	}
	if !strings.Contains(text(err), errUnread.Error()) {
		return fmt.Sprintf("%v and %v become %v and %v, without saying that it could not tell", identities(before), text(beforeErr), identities(found), text(err))
	}
	return ""
}
