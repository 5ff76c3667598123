package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Components are the processes of a lab, in the order in which they start.
var Components = [...]string{
	"etcd", "containerd", "node-proxy", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet",
}

// Patience bounds each wait for something real: more than any step takes on the busiest machine.
const Patience = 10 * time.Minute

// component defines how to start one process, and how to check that it works.
type component struct {
	argv  []string
	ready func(context.Context) error
}

func (l *Lab) component(name string) (component, error) {
	p := l.state.Ports
	switch name {
	case "etcd":
		return component{l.etcdArgs(), l.get("http://"+loopback(p.Etcd)+"/health", "")}, nil
	case "containerd":
		return component{[]string{filepath.Join(l.Paths.ContainerdDir, "containerd"), "--config", l.containerdConfig()},
			l.containerdReady}, nil
	case "crio":
		return component{l.crioArgs(), accepts("unix", l.Paths.CRISocket)}, nil
	case "node-proxy":
		return component{[]string{filepath.Join(l.Dir, "bin/nodeproxy"), l.proxySocket(), NodeIP, "127.0.0.1"},
			accepts("unix", l.proxySocket())}, nil
	case "kube-apiserver":
		return component{l.apiserverArgs(), l.get(l.Server()+"/readyz", "ok")}, nil
	case "kube-controller-manager":
		return component{l.controllerManagerArgs(), l.get("https://"+loopback(p.ControllerManager)+"/healthz", "ok")}, nil
	case "kube-scheduler":
		return component{l.schedulerArgs(), l.get("https://"+loopback(p.Scheduler)+"/healthz", "ok")}, nil
	case "kubelet":
		return component{l.kubeletArgs(), l.get("http://"+loopback(p.KubeletHealth)+"/healthz", "ok")}, nil
	}
	return component{}, fmt.Errorf("component %q: unknown, want one of %s", name, strings.Join(Components[:], " "))
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (l *Lab) etcdArgs() []string {
	client, peer := "http://"+loopback(l.state.Ports.Etcd), "http://"+loopback(l.state.Ports.EtcdPeer)
	return []string{
		"/usr/bin/etcd", "--name=lab", "--data-dir=" + filepath.Join(l.Dir, "etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
		"--unsafe-no-fsync", // the data of a lab are of no value
	}
}

func (l *Lab) apiserverArgs() []string {
	return []string{
		l.binary("kube-apiserver"), "--etcd-servers=http://" + loopback(l.state.Ports.Etcd),
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.state.Ports.APIServer), "--advertise-address=" +
			NodeIP,
		"--tls-cert-file=" + l.pki("apiserver.crt"), "--tls-private-key-file=" + l.pki("apiserver.key"),
		"--client-ca-file=" + l.Paths.CAFile, "--service-cluster-ip-range=" + serviceCIDR,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + l.pki("sa.pub"),
		"--service-account-signing-key-file=" + l.pki("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--kubelet-certificate-authority=" + l.Paths.CAFile, "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + l.pki("kubelet-client.crt"), "--kubelet-client-key=" +
			l.pki("kubelet-client.key"),
		"--egress-selector-config-file=" + l.egressConfig(), "--v=1",
		"--audit-policy-file=" + l.auditPolicy(), "--audit-log-path=" + l.AuditLog(), "--audit-log-maxsize=100",
		"--audit-log-maxbackup=1",
	}
}

func (l *Lab) controllerManagerArgs() []string {
	kubeconfig := l.kubeconfigOf("controller-manager")
	return []string{
		l.binary("kube-controller-manager"), "--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.state.Ports.ControllerManager),
		"--tls-cert-file=" + l.pki("apiserver.crt"), "--tls-private-key-file=" + l.pki("apiserver.key"),
		"--leader-elect=false", "--use-service-account-credentials=true", "--root-ca-file=" + l.Paths.CAFile,
		"--service-account-private-key-file=" + l.pki("sa.key"),
		"--cluster-signing-cert-file=" + l.Paths.CAFile, "--cluster-signing-key-file=" + l.pki("ca.key"),
		"--flex-volume-plugin-dir=" + filepath.Join(l.Dir, "volume-plugins"), "--v=1",
	}
}

func (l *Lab) schedulerArgs() []string {
	kubeconfig := l.kubeconfigOf("scheduler")
	return []string{
		l.binary("kube-scheduler"), "--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.state.Ports.Scheduler),
		"--tls-cert-file=" + l.pki("apiserver.crt"), "--tls-private-key-file=" + l.pki("apiserver.key"),
		"--leader-elect=false", "--v=1",
	}
}

func (l *Lab) kubeletArgs() []string {
	return []string{
		l.binary("kubelet"), "--config=" + l.Paths.KubeletConfig, "--kubeconfig=" + l.Paths.KubeletKubeconfig,
		"--hostname-override=" + l.NodeName, "--node-ip=" + NodeIP, "--root-dir=" + l.Paths.KubeletRoot,
		"--cert-dir=" + l.pki("kubelet-certs"), "--v=2",
	}
}

func (l *Lab) binary(name string) string { return filepath.Join(l.Paths.BinDir, name) }

func (l *Lab) logFile(component string) string {
	return filepath.Join(l.Paths.LogDir, component+".log")
}

// Start starts a component that is not running and waits until it works. It is no error if it is already running.
//
// With the apiserver the controller manager is restarted: its watches would only reconnect after growing pauses, and
// for up to minutes it would consider the node unreachable, so that tests would have to wait.
func (l *Lab) Start(ctx context.Context, name string) error {
	_, err := l.PID(name)
	restarted := err != nil && name == "kube-apiserver"
	if err := l.begin(name); err != nil {
		return err
	}
	if err := l.await(ctx, name); err != nil || !restarted {
		return err
	}
	const manager = "kube-controller-manager"
	if _, err := l.PID(manager); err != nil {
		return nil //nolint:nilerr // it does not run: a test has stopped it
	}
	if err := l.Stop(ctx, manager); err != nil {
		return err
	}
	return l.Start(ctx, manager)
}

// resuming is held by the only goroutine that starts missing components.
var resuming sync.Mutex

// Resume starts each component that does not run, for example because a test has failed before it started it again, and
// returns their names.
func (l *Lab) Resume(ctx context.Context) (missing []string, err error) {
	resuming.Lock()
	defer resuming.Unlock()
	for _, name := range l.components() {
		if _, err := l.PID(name); err != nil {
			missing = append(missing, name)
		}
		if err := l.Start(ctx, name); err != nil {
			return missing, err
		}
	}
	return missing, nil
}

func (l *Lab) begin(name string) error {
	c, err := l.component(name)
	if err != nil {
		return err
	}
	if _, err := l.PID(name); err == nil {
		return nil
	}
	if l.state.systemd() {
		return l.startUnit(name, c.argv)
	}
	return launch(l.Dir, name, l.logFile(name), c.argv)
}

func (l *Lab) await(ctx context.Context, name string) error {
	c, err := l.component(name)
	if err != nil {
		return err
	}
	err = poll(ctx, Patience, 100*time.Millisecond, func(ctx context.Context) error {
		if _, err := l.PID(name); err != nil {
			return permanent{err}
		}
		return c.ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w\nlast lines of %s:\n%s", name, err, l.logFile(name),
			tail(l.logFile(name), 15))
	}
	return nil
}

// Stop ends a component: SIGTERM, and SIGKILL after five seconds; after one for the apiserver, which would wait a
// minute for its watchers. Pods keep running without kubelet and containerd. It is no error if the component is not
// running.
func (l *Lab) Stop(ctx context.Context, name string) error {
	p, err := l.process(name)
	if errors.Is(err, errNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	patience := 5 * time.Second
	if name == "kube-apiserver" {
		patience = time.Second
	}
	if err := halt(ctx, p, patience); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// Signal sends sig to a component; SIGSTOP makes it hang, SIGKILL makes it crash.
func (l *Lab) Signal(name string, sig syscall.Signal) error {
	p, err := l.process(name)
	if err != nil {
		return err
	}
	return p.signal(sig)
}

// PID returns the process ID of a running component.
func (l *Lab) PID(name string) (int, error) {
	p, err := l.process(name)
	return p.PID, err
}

var errNotRunning = errors.New("not running")

func (l *Lab) process(name string) (process, error) {
	if _, err := l.component(name); err != nil {
		return process{}, err
	}
	p, err := readPIDFile(pidFile(l.Dir, name))
	if err != nil {
		return process{}, fmt.Errorf("%s: %w", name, errNotRunning)
	}
	if _, alive := p.status(); !alive {
		return process{}, fmt.Errorf("%s: %w", name, errNotRunning)
	}
	return p, nil
}
