package replay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// daemonExamples are the examples of the daemons' rules: whole lines of logs, "rule | line" in
// testdata/corpus/words.txt, worded as in the daemons' sources.
func daemonExamples(t testing.TB) map[string][]string {
	t.Helper()
	lines := map[string][]string{}
	for _, c := range corpus(t, "words.txt") {
		rule, line, _ := strings.Cut(c, " | ")
		lines[rule] = append(lines[rule], line)
	}
	return lines
}

// replayed returns the rules that match one line, with recoveries as "rule over".
func replayed(t testing.TB, m, daemons *kernellog.Matcher, line string) (rules []string) {
	t.Helper()
	_, err := Replay{Daemons: daemons}.Read(m, strings.NewReader(line+"\n"), func(f Found) error {
		name := f.Rule.ID
		if f.Recovered {
			name += " over"
		}
		rules = append(rules, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestDaemonRulesMatchTheirLines(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	known := map[string]bool{"-": true}
	for _, rule := range rules.Daemons() {
		known[rule.ID] = true
		known[rule.ID+" over"] = rule.Recovery != ""
	}
	examples := daemonExamples(t)
	for _, rule := range rules.Kernel() {
		known[rule.ID] = true
	}
	for rule, lines := range examples {
		if !known[rule] {
			t.Errorf("there is no rule %q", rule)
		}
		for _, line := range lines {
			got := strings.Join(replayed(t, m, daemons, line), ", ")
			if got == "" {
				got = "-"
			}
			if got != rule {
				t.Errorf("want %s, got %s: %s", rule, got, line)
			}
		}
	}
}

// TestEveryDaemonPatternIsUsed: a pattern that no example needs may be wrong without any test failing.
func TestEveryDaemonPatternIsUsed(t *testing.T) {
	daemons := newDaemonTable(t)
	examples := daemonExamples(t)
	for _, c := range daemons.Rules {
		id := c.Rule.ID
		if c.Recovery {
			id += " over"
		}
		for j, re := range c.Patterns {
			used := false
			for _, line := range examples[id] {
				p := parser{format: Auto}
				used = used || re.Regexp().Match(p.parse([]byte(line)).message)
			}
			if !used {
				t.Errorf("%s: no line matches pattern %d: %s", id, j, re.Regexp())
			}
		}
	}
}

// TestPodsCannotForge: text from a pod, a user or a container's log is never evidence.
func TestPodsCannotForge(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	const said = "kubelet.service: Failed with result 'exit-code'."
	for name, line := range map[string]string{
		"another program":        "Nov 21 01:02:03 host nginx[12]: " + said,
		"a container's name":     "Nov 21 01:02:03 host k8s_kubelet[12]: " + said,
		"a user's manager":       "Nov 21 01:02:03 host systemd[4711]: " + said,
		"quoted":                 "Nov 21 01:02:03 host nginx[12]: systemd[1]: " + said,
		"a session":              `{"_TRANSPORT":"syslog","_SYSTEMD_UNIT":"session-3.scope","_COMM":"logger","_PID":"7","SYSLOG_IDENTIFIER":"systemd","MESSAGE":"` + said + `"}`,
		"a pod with the name":    `{"_TRANSPORT":"syslog","_SYSTEMD_CGROUP":"/kubepods/burstable/pod1/x","_COMM":"systemd","_PID":"7","SYSLOG_IDENTIFIER":"systemd","MESSAGE":"` + said + `"}`,
		"a container of dockerd": `{"_TRANSPORT":"journal","_SYSTEMD_UNIT":"docker.service","_COMM":"dockerd","CONTAINER_ID":"0123","MESSAGE":"time=\"x\" level=fatal msg=\"forged\""}`,
		"a unit that looks like": `{"_TRANSPORT":"stdout","_SYSTEMD_UNIT":"kubelet-helper.service","_COMM":"sh","_PID":"7","MESSAGE":"PLEG is not healthy: pleg was last seen active 3m ago"}`,
		"the words of another":   "Nov 21 01:02:03 host kubelet[12]: " + said,
		"in the kernel's log":    "[   12.345678] nginx[12]: " + said,
	} {
		t.Run(name, func(t *testing.T) {
			if got := replayed(t, m, daemons, line); len(got) > 0 {
				t.Errorf("believed: %q", got)
			}
		})
	}
	for name, line := range map[string]string{
		"PID 1":                `{"_TRANSPORT":"journal","_SYSTEMD_UNIT":"init.scope","_COMM":"systemd","_PID":"1","MESSAGE":"` + said + `"}`,
		"early boot":           `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"3","SYSLOG_IDENTIFIER":"systemd","SYSLOG_PID":"1","MESSAGE":"` + said + `"}`,
		"fields were left out": `{"SYSLOG_IDENTIFIER":"systemd","MESSAGE":"` + said + `"}`,
		"short":                "Nov 21 01:02:03 host systemd[1]: " + said,
		"no number":            "Nov 21 01:02:03 host systemd: " + said,
		"no host":              "Nov 21 01:02:03 systemd[1]: " + said,
		"dmesg":                "[   12.345678] systemd[1]: " + said,
		"kmsg":                 "30,812,12345678,-;systemd[1]: " + said,
		"RFC 5424":             "<27>1 2023-11-21T01:02:03.123456+00:00 host systemd 1 - - " + said,
		"RFC 5424 with data":   `<27>1 2023-11-21T01:02:03Z host systemd 1 - [a@1 b="]"][c d="e"] ` + said,
		"priority":             "<27>Nov 21 01:02:03 host systemd[1]: " + said,
		"short-monotonic":      "[   12.345678] host systemd[1]: " + said,
		"a container's time":   "2023-11-21T01:02:03.123456789Z systemd[1]: " + said,
		"a console":            "[FAILED] Failed to start kubelet.service - kubelet: The Kubernetes Node Agent.",
		"a coloured console": "[\x1b[0;1;31mFAILED\x1b[0m] Failed to start \x1b[0;1;39mkubelet.service\x1b[0m - " +
			"kubelet: The Kubernetes Node Agent.",
		"colour, carriage return": "\x1b[0mNov 21 01:02:03 host \x1b[1msystemd[1]\x1b[0m: " + said + "\r",
	} {
		t.Run(name, func(t *testing.T) {
			if got := replayed(t, m, daemons, line); len(got) != 1 || got[0] != "kubelet-unit-failed" {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestHealthyNodes: whole logs of healthy machines, through replay: no finding is raised, and lines that only count are
// rare.
func TestHealthyNodes(t *testing.T) {
	m, daemons := kernelMatcher(t), newDaemonTable(t)
	files, err := filepath.Glob(filepath.Join("testdata", "corpus", "healthy-*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d logs, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			log, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			counting := 0
			sum, err := Replay{Daemons: daemons}.Read(m, log, func(f Found) error {
				if f.Raised {
					t.Errorf("line %d: %s: %s", f.Number, f.Rule.ID, f.Line)
				} else if !f.Recovered {
					counting++
				}
				return nil
			})
			if err != nil || sum.Kernel+sum.Daemon < sum.Lines/2 || sum.Lines < 50 {
				t.Errorf("%+v, %v", sum, err)
			}
			if counting*50 > sum.Lines {
				t.Errorf("%d of %d lines count for something", counting, sum.Lines)
			}
		})
	}
}

// healthyDaemons returns the daemons' lines on the healthy nodes.
func healthyDaemons(t testing.TB) (said []entry) {
	t.Helper()
	for _, name := range []string{"healthy-lab.kubelet.log.txt", "healthy-lab.containerd.log.txt",
		"healthy-lab.containerd2.log.txt"} {
		p := parser{format: Auto}
		for _, line := range corpus(t, name) {
			if e := p.parse([]byte(line)); e.emitter != rules.TheKernel {
				said = append(said, e)
			}
		}
	}
	return said
}

// BenchmarkBenignDaemons matches the daemons' lines of healthy nodes, with the whole table loaded.
func BenchmarkBenignDaemons(b *testing.B) {
	m, lines := newDaemonTable(b), healthyDaemons(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m.MatchOf(lines[i].emitter, lines[i].message)
		if i++; i == len(lines) {
			i = 0
		}
	}
}
