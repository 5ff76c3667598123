package daemonset

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/test/lab"
)

// importProgram makes a program's image like "make image-eventcenter", and imports it under the name in its chart.
func (c *cluster) importProgram(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	binary, archive := filepath.Join(dir, name), filepath.Join(dir, name+".tar")
	c.run(t, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", binary, "./cmd/"+name)
	c.run(t, "go", "run", "./packaging/image", "-o", archive, "-path", "/usr/bin/"+name, "-ref", "localhost/"+name+":dev", binary)
	c.run(t, c.Paths.Ctr, "--address", c.Paths.ContainerdSocket, "--namespace", "k8s.io", "images", "import", archive)
}

// services stands in for kube-proxy, which the lab does not have: the node has the addresses of the apiserver's and the
// center's Services, and forwards connections to the current endpoints.
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

// createVolume creates a volume of the node, owned by root: the chart's fsGroup gives it to the center.
func (c *center) createVolume(t *testing.T, name string) {
	t.Helper()
	dir := filepath.Join(c.Dir, name)
	c.volumes = append(c.volumes, dir)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := c.KubectlApply(t.Context(), fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 20Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: %q}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%q]}]
`, name, dir, c.NodeName)); err != nil {
		t.Fatal(err)
	}
}

// uninstallCenter removes the center's release and waits until its objects are gone, except the secrets that helm keeps.
func (c *center) uninstallCenter(t *testing.T) {
	t.Helper()
	// Not --wait, which may miss that the last object is gone, and then waits in vain (helm 4.2.1).
	c.helm(t, "uninstall", "eventcenter", "--namespace", namespace, "--ignore-not-found", "--cascade=foreground")
	c.kubectl(t, "wait", "-n", namespace, "--for=delete", "statefulsets,pods,services,configmaps,serviceaccounts,"+
		"poddisruptionbudgets,roles,rolebindings,clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=eventcenter",
		"--timeout=10m")
}

func (c *center) removeCenter(t *testing.T) {
	c.uninstallCenter(t)
	c.kubectl(t, "delete", "-n", namespace, "secret/eventcenter-tls", "secret/eventcenter-replicas",
		"serviceaccount/dashboard", "clusterrolebinding/dashboard", "node/"+senderNode, "--ignore-not-found", "--timeout=10m")
	c.removeVolumes(t)
	c.uninstall(t)
	s, err := store.Open(filepath.Join(c.stateDir(), "state.db"))
	if err != nil {
		t.Error(err)
		return
	}
	outbox := s.Bucket("eventcenter")
	err = outbox.ForEach(func(key string, _ []byte) error { return outbox.Delete(key) })
	if err = errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
}

// removeVolumes removes the volumes, with their data, and the claims.
func (c *center) removeVolumes(t *testing.T) {
	t.Helper()
	args := []string{"delete", "-n", namespace, "--ignore-not-found", "--timeout=10m"}
	for i, dir := range c.volumes {
		args = append(args, fmt.Sprint("pvc/data-eventcenter-", i), "pv/"+filepath.Base(dir))
	}
	c.kubectl(t, args...)
	for _, dir := range c.volumes {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	c.volumes = nil
}

// installCenter installs or upgrades the center's chart, and waits until it is ready.
func (c *center) installCenter(t *testing.T, settings ...string) {
	t.Helper()
	began := time.Now()
	c.applyCenter(t, append(settings, "--wait", "--timeout=10m")...)
	t.Logf("the center is ready after %s", time.Since(began).Round(time.Second))
}

// applyCenter installs or upgrades the center's chart, with settings and flags.
func (c *center) applyCenter(t *testing.T, settings ...string) {
	t.Helper()
	args := []string{"upgrade", "--install", "eventcenter", filepath.Join(c.repo, "packaging/kubernetes/eventcenter"),
		"--namespace", namespace, "--create-namespace", "--set", "cluster=lab,image.pullPolicy=Never"}
	for _, s := range settings {
		if !strings.HasPrefix(s, "--") {
			args = append(args, "--set")
		}
		args = append(args, s)
	}
	c.helm(t, args...)
}

// connect creates a client of the center's Service that trusts the same CA as agents must.
func (c *center) connect(t *testing.T) {
	t.Helper()
	address := c.clusterIP(t)
	c.service(t, address, func() string { return c.replicas.ready(c) })
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

// on returns the center with one replica as the endpoint.
func (c *center) on(t *testing.T, replica int) *center {
	t.Helper()
	address := net.JoinHostPort(c.kubectl(t, "get", "pod", "-n", namespace, fmt.Sprint("eventcenter-", replica), "-o",
		"jsonpath={.status.podIP}"), "10685")
	transport := c.client.Transport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return &center{cluster: c.cluster, reader: c.reader, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

func (c *center) clusterIP(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "service", "-n", namespace, "eventcenter", "-o", "jsonpath={.spec.clusterIP}")
}

// get sends a request to the center and decodes its answer.
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

// logCenter logs the state of the center's pods, and their and the agent's logs.
func (c *center) logCenter(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "pods,persistentvolumeclaims,persistentvolumes", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--selector", "app.kubernetes.io/name=eventcenter", "--all-containers", "--prefix", "--tail=100"},
	} {
		out, err := c.Kubectl(ctx, append([]string{"-n", namespace}, args...)...)
		t.Logf("%s: %v\n%s", args, err, out)
	}
	t.Logf("the agent's log:\n%s", c.logs(t))
}
