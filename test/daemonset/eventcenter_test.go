package daemonset

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

var withLong = flag.Bool("long", false, "run the test of the event center's chart too: six minutes")

const (
	centerUser = 65532 // the user in the chart
	centerName = "eventcenter.nodeagent.svc"
)

// center is the event center as its chart installs it.
type center struct {
	*cluster
	volumes  []string // of the center, on the node
	client   *http.Client
	reader   string // a token
	replicas *centerPods
	until    context.Context // the end of the test, for the stand-ins of the cluster
}

// The event center's chart and the agent's are installed as the notes of the first say: the center recognises the
// DaemonSet's agent by its pod's token, its faults arrive, also those from while the center was away, RBAC permits
// readers, a person signs in, an upgrade keeps the certificate, and the volume outlives the release. One replica
// becomes three, which lose no event if one of them is deleted or an upgrade replaces them one by one; only the
// documented objects stay. Three also start without an earlier release.
func TestEventCenter(t *testing.T) {
	need.Flag(t, *withLong, "-long: installs two charts, and waits for agents")
	c := &center{cluster: open(t), replicas: &centerPods{}, until: context.WithoutCancel(t.Context())}
	if !t.Run("image", func(t *testing.T) { testImage(t, c.cluster); c.importProgram(t, "eventcenter") }) {
		return
	}
	c.services(t)
	c.createVolume(t, "eventcenter-0")
	t.Cleanup(func() { c.removeCenter(t) })
	c.installCenter(t)
	c.connect(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T, *center)
	}{
		{"readers", testReaders},
		{"agent", testAgentReports},
		{"fault while away", testAway},
		{"sign in", testSignIn},
		{"upgrade", testUpgradeCenter},
		{"volume", testVolume},
		{"replicas", testReplicas},
		{"nothing but volumes", testNothingButVolumes},
		{"three at once", testThreeAtOnce},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, c) }) {
			c.logCenter(t)
			return
		}
	}
}

// testReaders: a ServiceAccount may read once it is bound to the chart's ClusterRole, and not before.
func testReaders(t *testing.T, c *center) {
	c.kubectl(t, "create", "serviceaccount", "-n", namespace, "dashboard")
	c.reader = strings.TrimSpace(c.kubectl(t, "create", "token", "-n", namespace, "dashboard", "--audience=eventcenter"))
	if code, err := c.get(t.Context(), c.reader, "/v1/nodes", nil); code != http.StatusForbidden {
		t.Errorf("without a right: %d, %v", code, err)
	}
	c.kubectl(t, "create", "clusterrolebinding", "dashboard", "--clusterrole=eventcenter-reader",
		"--serviceaccount="+namespace+":dashboard")
	await(t, "the reader's right", func() error { // a refusal is cached for up to 30 s
		code, err := c.get(t.Context(), c.reader, "/v1/nodes", nil)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d", code)
		}
		return err
	})
	if code, _ := c.get(t.Context(), c.reader, "/v1/subscriptions", nil); code != http.StatusForbidden {
		t.Errorf("a reader may see subscriptions: %d", code)
	}
}

// notes returns the chart's notes, from a line with this prefix to the next that is not indented as deep.
func (c *center) notes(t *testing.T, begin string) string {
	t.Helper()
	_, text, found := strings.Cut(c.helm(t, "get", "notes", "eventcenter", "--namespace", namespace), begin)
	if !found {
		t.Fatalf("the notes have no %q", begin)
	}
	var taken strings.Builder
	for line := range strings.Lines(strings.TrimLeft(text, "\n")) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "  ") {
			break
		}
		taken.WriteString(strings.TrimPrefix(line, "  "))
	}
	return taken.String()
}

// testAgentReports installs the agent with the settings of the center's notes, and the center recognises the node by
// its token.
func testAgentReports(t *testing.T, c *center) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	text := strings.ReplaceAll(c.notes(t, "(chart nodeagent, in the same namespace):"), "<its cluster IP>", c.clusterIP(t))
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.cluster.values = []string{values}
	c.install(t, true)
	c.await1(t, "the agent to be ready", ready)
	var answer struct {
		Nodes []struct {
			Cluster, Node, Version string
			Silence                *struct{ State string }
			Blind                  []string
		}
	}
	await(t, "the node's agent", func() error {
		if _, err := c.get(t.Context(), c.reader, "/v1/nodes", &answer); err != nil {
			return err
		}
		if len(answer.Nodes) != 1 || answer.Nodes[0].Version == "" {
			return fmt.Errorf("nodes %+v", answer.Nodes)
		}
		return nil
	})
	if n := answer.Nodes[0]; n.Cluster != "lab" || n.Node != c.NodeName || n.Silence != nil {
		t.Errorf("the node: %+v", n)
	}
	var metrics string
	if _, err := c.get(t.Context(), c.reader, "/metrics", &metrics); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^eventcenter_identities_total\{by="token",cluster="lab",result="accepted"\} [1-9]`).
		MatchString(metrics) || strings.Contains(metrics, `result="unreviewed"`) {
		t.Errorf("the agent was not known by a reviewed token:\n%s", grep(metrics, "identities"))
	}
}

func grep(text, part string) string {
	var found strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found.WriteString(line)
		}
	}
	return found.String()
}

type faults struct {
	Faults []struct {
		Reason, Node, Severity string
		Subject                struct{ Kind, Name string }
	}
}

// awaitFault waits until the center shows the read-only filesystem of a disk, or does not.
func (c *center) awaitFault(t *testing.T, mount string, there bool) {
	t.Helper()
	await(t, fmt.Sprintf("the fault of %s to be there: %t", mount, there), func() error {
		var answer faults
		if _, err := c.get(t.Context(), c.reader, "/v1/faults", &answer); err != nil {
			return err
		}
		found := false
		for _, f := range answer.Faults {
			found = found || f.Subject.Name == mount
		}
		if found != there {
			return fmt.Errorf("faults %+v", answer.Faults)
		}
		return nil
	})
}

// testAway breaks a disk, and repairs it while there is no center: the end of the fault arrives when the center is
// back, once.
func testAway(t *testing.T, c *center) {
	disk := failedDisk(t, c.Dir)
	began := time.Now()
	c.awaitFault(t, disk.Mount, true)
	t.Logf("in the center after %s", time.Since(began).Round(10*time.Millisecond))
	var avoid struct {
		Pools []struct{ Avoid []struct{ Node string } }
	}
	if _, err := c.get(t.Context(), c.reader, "/v1/avoid", &avoid); err != nil {
		t.Fatal(err)
	}
	if len(avoid.Pools) != 1 || len(avoid.Pools[0].Avoid) != 1 || avoid.Pools[0].Avoid[0].Node != c.NodeName {
		t.Errorf("to avoid: %+v", avoid)
	}
	c.kubectl(t, "scale", "-n", namespace, "statefulset/eventcenter", "--replicas=0")
	c.kubectl(t, "wait", "-n", namespace, "pod/eventcenter-0", "--for=delete", "--timeout=10m")
	if err := disk.Unmount(); err != nil {
		t.Fatal(err)
	}
	if err := disk.MountAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitCondition(t, "ReadonlyFilesystem", "False")
	c.kubectl(t, "scale", "-n", namespace, "statefulset/eventcenter", "--replicas=1")
	c.kubectl(t, "rollout", "status", "-n", namespace, "statefulset/eventcenter", "--timeout=10m")
	c.awaitFault(t, disk.Mount, false)
	for _, kind := range []string{"raised", "cleared"} {
		var events struct {
			Events []struct {
				Event struct {
					Inferred any // derived by the center from a snapshot, which comes before the event itself
					Data     struct{ Subject struct{ Name string } }
				}
			}
		}
		if _, err := c.get(t.Context(), c.reader, "/v1/events?type=io.github.nodeagent.fault."+kind+".v1&limit=1000",
			&events); err != nil {
			t.Fatal(err)
		}
		times := 0
		for _, e := range events.Events {
			if e.Event.Data.Subject.Name == disk.Mount && e.Event.Inferred == nil {
				times++
			}
		}
		if times != 1 {
			t.Errorf("fault.%s of %s: %d times", kind, disk.Mount, times)
		}
	}
}

// testSignIn prints a code with the command of the notes, which signs in one person.
func testSignIn(t *testing.T, c *center) {
	command, _, _ := strings.Cut(c.notes(t, "The pages, for you:"), "kubectl -n nodeagent port-forward")
	command = strings.Replace(command, "kubectl", strings.Join(c.KubectlCommand(), " "), 1)
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", command).CombinedOutput()
	code := regexp.MustCompile(`code: (\S+)`).FindSubmatch(out)
	if err != nil || code == nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// testUpgradeCenter changes a setting: the certificate that agents trust stays, and they continue.
func testUpgradeCenter(t *testing.T, c *center) {
	certificate := func() string {
		return c.kubectl(t, "get", "secret", "-n", namespace, "eventcenter-tls", "-o", `jsonpath={.data.tls\.crt}`)
	}
	before := certificate()
	c.installCenter(t, "keep.time=48h")
	if certificate() != before {
		t.Error("an upgrade has replaced the certificate")
	}
	c.awaitWord(t)
}

// awaitWord waits until the agent has sent an event to this center, which has just started.
func (c *center) awaitWord(t *testing.T) {
	t.Helper()
	await(t, "a word of the agent", func() error {
		var metrics string
		if _, err := c.get(t.Context(), c.reader, "/metrics", &metrics); err != nil {
			return err
		}
		if !regexp.MustCompile(`(?m)^eventcenter_events_total\{result="(stored|alive)"\} [1-9]`).MatchString(metrics) {
			return fmt.Errorf("none yet:\n%s", grep(metrics, "eventcenter_events_total"))
		}
		return nil
	})
}

// testVolume removes the release and installs it again: the history is still there, and so is the certificate.
func testVolume(t *testing.T, c *center) {
	c.uninstallCenter(t)
	c.installCenter(t)
	var events struct{ Events []struct{ Offset string } }
	if _, err := c.get(t.Context(), c.reader, "/v1/events?limit=1", &events); err != nil || len(events.Events) != 1 ||
		events.Events[0].Offset != "1" {
		t.Errorf("the first event: %v, %+v", err, events)
	}
}
