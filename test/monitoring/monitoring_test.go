// Package monitoring runs the alert rules and the dashboard of packaging/monitoring in the real Prometheus, on the
// metrics of a real agent and a real event center.
package monitoring

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

var bin = flag.String("prometheus", "", "directory with prometheus and promtool")

const folder = "../../packaging/monitoring/"

// rules holds the parts of alerts.yaml that the tests read.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// files are the files of rules; each has its tests beside it.
var files = []string{"alerts", "tracecenter"}

func alerts(t *testing.T, file string) (r rules) {
	t.Helper()
	text, err := os.ReadFile(folder + file + ".yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every alert has a test, an advice, and an urgency.
func TestAlertsAreComplete(t *testing.T) {
	for _, file := range files {
		tests, err := os.ReadFile(folder + file + "_test.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range alerts(t, file).Groups {
			for _, r := range g.Rules {
				if r.Alert == "" {
					continue // a recording rule
				}
				if !strings.Contains(string(tests), "alertname: "+r.Alert+"\n") {
					t.Errorf("%s has no test in which it fires", r.Alert)
				}
				if severity := r.Labels["severity"]; severity != "warning" && severity != "critical" {
					t.Errorf("%s has severity %q", r.Alert, severity)
				}
				if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
					t.Errorf("%s does not say what is wrong, or what to do", r.Alert)
				}
			}
		}
	}
}

func TestAlerts(t *testing.T) {
	need.Flag(t, *bin != "", "-prometheus: the programs")
	for _, file := range files {
		out, err := exec.CommandContext(t.Context(), filepath.Join(*bin, "promtool"), "test", "rules", folder+file+"_test.yaml").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// running is a program that ends with the test.
func running(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...) // it is ended below
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
}

// address returns a free address of this machine.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// prometheus runs Prometheus with the alert rules, an agent and a center, and returns its address.
func prometheus(t *testing.T) string {
	t.Helper()
	repo, err := harness.Repo()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./cmd/nodeagent", "./cmd/eventcenter")
	build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	agent, center, prom := address(t), address(t), address(t)
	running(t, dir+"/eventcenter", "serve", "--dir", dir+"/center", "--listen", center, "--subscriptions",
		write(t, dir+"/subscriptions.yaml", fmt.Sprintf(`
targets: [{url: "http://hooks.example.com/", secretFile: %s/secret}]
subscriptions: [{name: a, url: "http://hooks.example.com/"}]
`, dir)))
	token := dir + "/center/token"
	if err := harness.WaitFor(t.Context(), "the center's token", func() error {
		_, err := os.Stat(token)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	running(t, dir+"/nodeagent", "run", "--config", write(t, dir+"/agent.yaml", fmt.Sprintf(`
stateDir: %[1]s/state
socket: %[1]s/agent.sock
nodeName: test
report:
  metrics: {listen: "%[2]s"}
  eventCenter: {endpoints: ["http://%[3]s/v1/events"], cluster: test, tokenFile: %[4]s}
`, dir, agent, center, token)))
	repoAlerts, err := filepath.Abs(folder + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	running(t, filepath.Join(*bin, "prometheus"), "--web.listen-address="+prom, "--storage.tsdb.path="+dir+"/tsdb",
		"--config.file="+write(t, dir+"/prometheus.yaml", fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: nodeagent, static_configs: [{targets: [%q]}]}
  - job_name: eventcenter
    authorization: {credentials_file: %q}
    static_configs: [{targets: [%q]}]
`, repoAlerts, agent, token, center)))
	return "http://" + prom
}

// ask returns how many series a query has.
func ask(ctx context.Context, prom, query string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, prom+"/api/v1/query?"+url.Values{"query": {query}}.Encode(), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", query, answer.Error)
	}
	return len(answer.Data.Result), nil
}

// queries returns the queries of the dashboard, by the title of their panel.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	var dashboard struct {
		Title, UID string
		Panels     []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(folder + "dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil || dashboard.UID == "" {
		t.Fatal(err, dashboard.UID)
	}
	found := map[string][]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			found[p.Title] = append(found[p.Title], target.Expr)
		}
	}
	return found
}

var metric = regexp.MustCompile(`\b(?:nodeagent|eventcenter|problem)_[a-z_]+\b`)

// Every query of the dashboard has an answer, and every metric in an alert exists, on the metrics of real programs.
func TestRealMetrics(t *testing.T) {
	need.Flag(t, *bin != "", "-prometheus: the programs")
	prom := prometheus(t)
	for title, exprs := range queries(t) {
		for _, expr := range exprs {
			if err := harness.WaitFor(t.Context(), title, func() error {
				n, err := ask(t.Context(), prom, expr)
				if err == nil && n == 0 {
					err = fmt.Errorf("no data: %s", expr)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	}
	// Only on a node with Kubernetes, or while there is a leftover or a silent cluster.
	absent := []string{"nodeagent_leftovers", "eventcenter_silent_clusters"}
	names := map[string]bool{}
	for _, g := range alerts(t, "alerts").Groups {
		for _, r := range g.Rules {
			for _, name := range metric.FindAllString(r.Expr, -1) {
				names[name] = true
			}
		}
	}
	for name := range names {
		n, err := ask(t.Context(), prom, name)
		if err != nil || n == 0 && !slices.Contains(absent, name) {
			t.Errorf("%s: %d series, %v", name, n, err)
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d metrics are named: %v", len(names), names)
	}
}
