package daemonset

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

var withLong = flag.Bool("long", false, "run the test of the event center's chart too: two minutes")

const (
	centerImage = "localhost/eventcenter:dev" // what the chart names
	centerUser  = 65532                       // what the chart runs it as
	centerName  = "eventcenter.nodeagent.svc"
)

// center is the event center as its chart installs it.
type center struct {
	*cluster
	volume string // of the center, on the node
	client *http.Client
	reader string // a token
}

// The event center's chart and the agent's, installed as the notes of the first say: the DaemonSet's agent is known by
// its pod's token, its faults arrive, also those of while the center was away, readers read by RBAC, a person signs in,
// an upgrade leaves the certificate alone, and the volume outlives the release.
func TestEventCenter(t *testing.T) {
	need.Flag(t, *withLong, "-long: installs two charts, and waits for agents")
	c := &center{cluster: open(t)}
	if !t.Run("image", func(t *testing.T) { testImage(t, c.cluster); c.importCenter(t) }) {
		return
	}
	c.services(t)
	c.createVolume(t)
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
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, c) }) {
			logs, err := c.Kubectl(context.WithoutCancel(t.Context()), "logs", "-n", namespace, "eventcenter-0", "--tail=60")
			t.Logf("the center's log: %v\n%s\nthe agent's log:\n%s", err, logs, c.logs(t))
			return
		}
	}
}

// importCenter makes the center's image as "make image-eventcenter" does, and imports it.
func (c *center) importCenter(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	binary, archive := filepath.Join(dir, "eventcenter"), filepath.Join(dir, "eventcenter.tar")
	c.run(t, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", binary,
		"./cmd/eventcenter")
	c.run(t, "go", "run", "./packaging/image", "-o", archive, "-path", "/usr/bin/eventcenter", "-ref", centerImage, binary)
	c.run(t, c.Paths.Ctr, "--address", c.Paths.ContainerdSocket, "--namespace", "k8s.io", "images", "import", archive)
}

// services stands in for kube-proxy, which the lab does not have: the node has the addresses of the apiserver's Service
// and of the center's, and whoever connects there is connected with what is behind it now.
func (c *center) services(t *testing.T) {
	t.Helper()
	c.service(t, c.kubectl(t, "get", "service", "-n", "default", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"),
		func() string { return strings.TrimPrefix(c.Server(), "https://") })
}

func (c *center) service(t *testing.T, address string, behind func() string) {
	t.Helper()
	c.run(t, "/sbin/ip", "addr", "add", address+"/32", "dev", lab.NodeLink)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address+":443")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = listener.Close()
		c.run(t, "/sbin/ip", "addr", "del", address+"/32", "dev", lab.NodeLink)
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(conn, behind())
		}
	}()
}

// relay connects a connection with an address, until either ends.
func relay(conn net.Conn, address string) {
	defer conn.Close()
	other, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(other, conn); _ = other.Close() }()
	_, _ = io.Copy(conn, other)
}

// createVolume makes a volume of the node, which belongs to root: the chart's fsGroup makes it the center's.
func (c *center) createVolume(t *testing.T) {
	t.Helper()
	c.volume = filepath.Join(c.Dir, "eventcenter")
	if err := os.MkdirAll(c.volume, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := c.KubectlApply(t.Context(), fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: eventcenter}
spec:
  capacity: {storage: 20Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: %q}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%q]}]
`, c.volume, c.NodeName)); err != nil {
		t.Fatal(err)
	}
}

func (c *center) removeCenter(t *testing.T) {
	c.helm(t, "uninstall", "eventcenter", "--namespace", namespace, "--ignore-not-found", "--wait", "--timeout=60s")
	c.kubectl(t, "delete", "-n", namespace, "pvc/data-eventcenter-0", "secret/eventcenter-tls", "serviceaccount/dashboard",
		"--ignore-not-found", "--timeout=60s")
	c.kubectl(t, "delete", "pv/eventcenter", "clusterrolebinding/dashboard", "--ignore-not-found", "--timeout=60s")
	c.uninstall(t)
	for _, dir := range []string{c.volume, filepath.Join(c.stateDir(), "eventcenter")} { // the latter is the agent's outbox
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}

// installCenter installs or upgrades the center's chart, and waits until it is ready.
func (c *center) installCenter(t *testing.T, settings ...string) {
	t.Helper()
	args := []string{"upgrade", "--install", "eventcenter", filepath.Join(c.repo, "packaging/kubernetes/eventcenter"),
		"--namespace", namespace, "--create-namespace", "--wait", "--timeout=120s",
		"--set", "cluster=lab,image.pullPolicy=Never"}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	began := time.Now()
	c.helm(t, args...)
	t.Logf("the center is ready after %s", time.Since(began).Round(time.Second))
}

// connect makes a client of the center's Service that trusts what agents are to trust.
func (c *center) connect(t *testing.T) {
	t.Helper()
	address := c.clusterIP(t)
	c.service(t, address, func() string {
		ip, _ := c.Kubectl(context.WithoutCancel(t.Context()), "get", "pod", "-n", namespace, "eventcenter-0", "-o",
			"jsonpath={.status.podIP}")
		return net.JoinHostPort(string(ip), "10685")
	})
	roots := x509.NewCertPool()
	ca := c.kubectl(t, "get", "configmap", "-n", namespace, "eventcenter-ca", "-o", `jsonpath={.data.ca\.crt}`)
	if !roots.AppendCertsFromPEM([]byte(ca)) {
		t.Fatalf("no authority in %q", ca)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: centerName}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address+":443")
		}}
	c.client = &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func (c *center) clusterIP(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "service", "-n", namespace, "eventcenter", "-o", "jsonpath={.spec.clusterIP}")
}

// get asks the center and decodes its answer.
func (c *center) get(ctx context.Context, token, path string, answer any) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+centerName+path, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := c.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil || response.StatusCode != http.StatusOK || answer == nil {
		return response.StatusCode, err
	}
	if s, ok := answer.(*string); ok {
		*s = string(text)
		return response.StatusCode, nil
	}
	return response.StatusCode, json.Unmarshal(text, answer)
}

// testReaders has a ServiceAccount read once it is bound to the chart's ClusterRole, and not before.
func testReaders(t *testing.T, c *center) {
	c.kubectl(t, "create", "serviceaccount", "-n", namespace, "dashboard")
	c.reader = strings.TrimSpace(c.kubectl(t, "create", "token", "-n", namespace, "dashboard", "--audience=eventcenter"))
	if code, err := c.get(t.Context(), c.reader, "/v1/nodes", nil); code != http.StatusForbidden {
		t.Errorf("without a right: %d, %v", code, err)
	}
	c.kubectl(t, "create", "clusterrolebinding", "dashboard", "--clusterrole=eventcenter-reader",
		"--serviceaccount="+namespace+":dashboard")
	await(t, 60*time.Second, "the reader's right", func() error { // a refusal holds for up to 30 s
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

// notes returns the chart's notes, from a line that begins so to the next that is not indented as deep.
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

// testAgentReports installs the agent with what the center's notes say, and the center knows the node by its token.
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
	await(t, 90*time.Second, "the node's agent", func() error {
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
	await(t, 90*time.Second, fmt.Sprintf("the fault of %s to be there: %t", mount, there), func() error {
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

// testAway breaks a disk, and mends it while there is no center: the end arrives when the center is back, once.
func testAway(t *testing.T, c *center) {
	dir := filepath.Join(c.Dir, "eventcenter-disk")
	disk, err := harness.NewDisk(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err) // removed by the test already
		}
		_ = os.Remove(dir)
	})
	if err := disk.Fail(); err != nil {
		t.Fatal(err)
	}
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
	c.kubectl(t, "wait", "-n", namespace, "pod/eventcenter-0", "--for=delete", "--timeout=60s")
	if err := disk.Unmount(); err != nil {
		t.Fatal(err)
	}
	if err := disk.MountAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitCondition(t, "ReadonlyFilesystem", "False")
	c.kubectl(t, "scale", "-n", namespace, "statefulset/eventcenter", "--replicas=1")
	c.kubectl(t, "rollout", "status", "-n", namespace, "statefulset/eventcenter", "--timeout=90s")
	c.awaitFault(t, disk.Mount, false)
	for _, kind := range []string{"raised", "cleared"} {
		var events struct {
			Events []struct {
				Event struct {
					Inferred any // what the center made of a snapshot, which comes before the event itself
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

// testSignIn prints a code with the command of the notes, which signs one person in.
func testSignIn(t *testing.T, c *center) {
	command, _, _ := strings.Cut(c.notes(t, "The pages, for you:"), "kubectl -n nodeagent port-forward")
	command = strings.Replace(command, "kubectl", strings.Join(c.KubectlCommand(), " "), 1)
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", command).CombinedOutput()
	code := regexp.MustCompile(`code: (\S+)`).FindSubmatch(out)
	if err != nil || code == nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// testUpgradeCenter changes a setting: the certificate that agents trust stays, and they go on.
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

// awaitWord waits until the agent has said a word to this center, which was just started.
func (c *center) awaitWord(t *testing.T) {
	t.Helper()
	await(t, 120*time.Second, "a word of the agent", func() error {
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

// testVolume removes the release and installs it again: the history is there, and so is the certificate.
func testVolume(t *testing.T, c *center) {
	c.helm(t, "uninstall", "eventcenter", "--namespace", namespace, "--wait", "--timeout=60s")
	c.installCenter(t)
	var events struct{ Events []struct{ Offset string } }
	if _, err := c.get(t.Context(), c.reader, "/v1/events?limit=1", &events); err != nil || len(events.Events) != 1 ||
		events.Events[0].Offset != "1" {
		t.Errorf("the first event: %v, %+v", err, events)
	}
}
