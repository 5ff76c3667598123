package kubeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// absentRecheck is how long kube-proxy is assumed not to belong here: a check scans all processes.
	absentRecheck   = 5 * time.Minute
	maxProxyHealthz = 64 << 10 // bytes
)

type kubeProxyCheck struct {
	settings Settings

	program discover.Program
	absent  time.Duration // time since boot when the check found that none belongs here; 0: one does, or unknown
}

// observation holds the readings of one run.
type observation struct {
	process host.Process
	runs    bool
	url     string
	status  int // 0: no answer
	body    string
	err     error
}

func (c *kubeProxyCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	if c.absent != 0 && now-c.absent < absentRecheck {
		return nil, errNoKubeProxy()
	}
	c.absent = 0
	seen := observation{}
	c.program.Doubtful = func(p host.Process) bool { return tenants(h, p.PID) }
	process, err := c.program.Find(h)
	switch {
	case err == nil:
		seen.process, seen.runs = process, true
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	address, listens := c.address(h, seen)
	if listens || !seen.runs {
		c.ask(ctx, &seen, address)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("ask kube-proxy: %w", ctx.Err())
	}
	switch {
	case seen.isProxy(), seen.runs && listens:
		return c.certain(ctx, h, seen, address)
	case seen.runs:
		return nil, finding.NotApplicable("kube-proxy (pid %d) serves no health on port %d: set the port of this check",
			seen.process.PID, c.settings.Port)
	}
	return c.evaluateAbsent(ctx, h, now)
}

// certain returns the faults of kube-proxy, or why they may be another's: anyone who may create pods can take its port, and
// on the node's network its name.
func (c *kubeProxyCheck) certain(ctx context.Context, h *host.Host, seen observation, address string) ([]finding.Finding,
	error) {
	found := seen.evaluate()
	if len(found) == 0 {
		return nil, nil
	}
	owner := seen.process
	if !seen.runs { // it may be a part of kubelet's process
		if h.Kubelet.Process == nil {
			return nil, fmt.Errorf("no kube-proxy runs, and it is not known who answers %s", seen.url)
		}
		var err error
		if owner, err = h.Kubelet.Process(); err != nil {
			return nil, fmt.Errorf("no kube-proxy runs, and it is not known who answers %s: %w", seen.url, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, min(c.settings.Timeout, time.Second))
	defer cancel()
	if why := socket.Intercepted(ctx, h, owner.PID, address); why != "" {
		return nil, fmt.Errorf("kube-proxy's health: %s", why)
	}
	if seen.runs && tenants(h, owner.PID) {
		found[0].Severity = finding.Warning
	}
	return found, nil
}

// tenants reports whether a process runs in a pod outside the cluster's own namespaces, or in an unknown one. kubelet makes
// the directory of a pod's logs, NAMESPACE_NAME_UID, before its first container.
func tenants(h *host.Host, pid int) bool {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return true
	}
	for _, name := range cgroups {
		uid, _, inPod := h.Paths.PodOfCgroup(name)
		if !inPod {
			continue
		}
		logs, _ := h.Files.List(h.Paths.PodLogs)
		return !slices.ContainsFunc(logs, func(dir string) bool {
			namespace, _, _ := strings.Cut(dir, "_")
			return strings.HasSuffix(dir, "_"+uid) &&
				(namespace == metav1.NamespaceSystem || strings.HasPrefix(namespace, "openshift-"))
		})
	}
	return false
}

func errNoKubeProxy() error {
	return finding.NotApplicable("no kube-proxy runs here and no pod of it is on this node")
}

// evaluateAbsent decides whether an absent kube-proxy should run.
func (c *kubeProxyCheck) evaluateAbsent(ctx context.Context, h *host.Host, now time.Duration) ([]finding.Finding,
	error) {
	if h.Kubelet.Pods == nil || !checkkit.KubeletInstalled(h) {
		c.absent = now
		return nil, errNoKubeProxy()
	}
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("no kube-proxy runs; whether one should: %w", err)
	}
	i := slices.IndexFunc(pods, isKubeProxyPod)
	if i < 0 {
		c.absent = now
		return nil, errNoKubeProxy()
	}
	pod := &pods[i]
	f := proxyFinding("KubeProxyNotRunning",
		fmt.Sprintf("pod %s/%s is on this node, but no kube-proxy runs%s: read its log",
			pod.Namespace, pod.Name, waitingBecause(pod)))
	f.Facts["pods"] = pod.Namespace + "/" + pod.Name
	return []finding.Finding{f}, nil
}

// isKubeProxyPod recognizes the pod by its container, whose name is the same in all distributions, and ignores pods
// that are not meant to run.
func isKubeProxyPod(pod corev1.Pod) bool {
	return pod.Namespace == metav1.NamespaceSystem && pod.Spec.HostNetwork && pod.DeletionTimestamp == nil &&
		pod.Status.Phase != corev1.PodSucceeded &&
		slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "kube-proxy" })
}

// waitingBecause renders why a container of the pod does not run, if kubelet reports it.
func waitingBecause(pod *corev1.Pod) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := status.State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf(" (container %s: %s)", checkkit.Sanitize(status.Name, 64),
				checkkit.Sanitize(w.Reason, 64))
		}
	}
	return ""
}

// address returns the address of the health server, and whether a process listens there.
func (c *kubeProxyCheck) address(h *host.Host, seen observation) (address string, listens bool) {
	port := c.settings.Port
	local := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if !seen.runs {
		return local, false
	}
	if flag, ok := healthzFlag(seen.process.Args); ok {
		return flag, true
	}
	sockets, err := socket.OfTCP(h, seen.process.PID)
	if err != nil {
		return local, false
	}
	for _, s := range sockets {
		if s.Listens && int(s.Local.Port()) == port {
			return netip.AddrPortFrom(dialable(s.Local.Addr()), s.Local.Port()).String(), true
		}
	}
	return local, false
}

// healthzFlag reads --healthz-bind-address: "0.0.0.0:10256", or an address alone before 1.11.
func healthzFlag(args []string) (string, bool) {
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		if strings.ReplaceAll(name, "_", "-") != "--healthz-bind-address" {
			continue
		}
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		bound, err := netip.ParseAddrPort(value)
		if err != nil {
			return "", false
		}
		return netip.AddrPortFrom(dialable(bound.Addr()), bound.Port()).String(), true
	}
	return "", false
}

// dialable returns the address at which this machine reaches a process that listens on ip.
func dialable(ip netip.Addr) netip.Addr {
	switch ip {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return ip
}

// ask queries /livez, and /healthz if that does not exist.
func (c *kubeProxyCheck) ask(ctx context.Context, seen *observation, address string) {
	ctx, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	for _, path := range []string{"/livez", "/healthz"} {
		seen.url = "http://" + address + path
		var body []byte
		seen.status, body, seen.err = host.Get(ctx, seen.url, maxProxyHealthz)
		seen.body = string(body)
		if seen.err != nil || seen.status != http.StatusNotFound {
			return
		}
	}
}

func proxyFinding(reason, message string) finding.Finding {
	return finding.Finding{
		Subject: finding.Subject{Kind: "kube-proxy", Name: "kube-proxy"}, Severity: finding.Fatal,
		Reason: reason, Message: message, Facts: map[string]string{},
	}
}

func (seen observation) describe() string {
	if !seen.runs {
		return "kube-proxy"
	}
	return fmt.Sprintf("kube-proxy (pid %d)", seen.process.PID)
}

func (seen observation) fault(reason, format string, args ...any) []finding.Finding {
	f := proxyFinding(reason, seen.describe()+" "+fmt.Sprintf(format, args...))
	f.Facts["url"] = seen.url
	if seen.status != 0 {
		f.Facts["status"] = strconv.Itoa(seen.status)
	}
	if seen.runs {
		f.Facts["pid"] = strconv.Itoa(seen.process.PID)
	}
	f.Facts["said"] = cmp.Or(checkkit.Sanitize(seen.body, 300), "nothing")
	return []finding.Finding{f}
}
