// Package lab brings up a real Kubernetes cluster of one node on this machine, for tests: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet and containerd as plain processes, pods on a bridge network, images
// made by hand. It pulls no image from a registry, and all servers listen on 127.0.0.1 only.
//
// Everything of a lab is in one folder; an object that cannot be there has a name that only a lab uses, or is recorded
// before it is changed. So Down removes all of it, from any state, and proves that it did.
//
// It refuses to end a process, unmount a filesystem or delete a link without the lab's mark.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Options select what Up builds. The zero value is valid.
type Options struct {
	Dir      string // if empty that of this namespace, else DefaultDir
	NodeName string // "lab-node" if empty
	// "1": Debian's 1.6; "2": the one of test/containerd; if empty that of the running lab, else Debian's
	Containerd string
	CRIO       bool      // CRI-O instead of containerd
	Users      bool      // with containerd 2: the runc of test/runc, so that pods can have user namespaces
	Join       string    // folder of the control plane that an emulated machine joins; see UpControlPlane
	Repo       string    // checkout of nodeagent; found from the working directory if empty
	Log        io.Writer // progress, a line for each phase; discarded if nil
}

// Lab is a running lab. Its methods may be used by several goroutines and processes at once.
type Lab struct {
	Dir      string
	NodeName string
	Paths    Paths
	state    *state
	progress
}

// progress reports slow steps.
type progress struct {
	out   io.Writer
	began time.Time
}

func newProgress(out io.Writer) progress {
	if out == nil {
		out = io.Discard
	}
	return progress{out, time.Now()}
}

func (p progress) logf(format string, args ...any) {
	fmt.Fprintf(p.out, "[%6.1fs] %s\n", time.Since(p.began).Seconds(), fmt.Sprintf(format, args...))
}

// Up makes sure that a healthy lab is running. It keeps a healthy one; of any other it first removes every trace, so
// that the result is always in a known state. It needs root.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	l, err := newLab(opts)
	if err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, "nodeagent-lab", "another command is bringing up or removing the lab", l.logf)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if old, err := readState(l.Dir); err == nil && old.NodeName == l.NodeName {
		running := open(l.Dir, old, l.out)
		if err = running.Healthy(ctx); err == nil && opts.Containerd != "" &&
			running.Paths.ContainerdDir != l.Paths.ContainerdDir {
			err = fmt.Errorf("it runs the containerd of %s", running.Paths.ContainerdDir)
		}
		if err == nil && opts.Users && running.Paths.RuncDir == "" {
			err = errors.New("its pods cannot have users of their own")
		}
		if err == nil && running.Paths.CRIODir != l.Paths.CRIODir {
			err = fmt.Errorf("its runtime is another: %s", running.Paths.CRISocket)
		}
		if err == nil {
			l.logf("lab in %s is running and healthy", l.Dir)
			return running, nil
		}
		l.logf("the running lab cannot be used (%v): removing it", err)
	}
	if err := l.claim(); err != nil {
		return nil, err
	}
	if err := l.down(ctx); err != nil {
		return nil, fmt.Errorf("remove what is left of an earlier lab: %w", err)
	}
	if err := l.build(ctx, opts.Join); err != nil {
		return nil, err
	}
	return l, nil
}

func newLab(opts Options) (*Lab, error) {
	opts.Dir = folder(opts.Dir)
	if opts.NodeName == "" {
		opts.NodeName = "lab-node"
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab needs root: it mounts, makes links and cgroups")
	}
	if err := checkDir(opts.Dir); err != nil {
		return nil, err
	}
	repo, err := findRepo(opts.Repo)
	if err != nil {
		return nil, err
	}
	s := &state{NodeName: opts.NodeName, Repo: repo}
	if opts.Join != "" {
		s.Part = node
	}
	if s.BinDir, err = kubernetes().cacheDir(repo); err != nil {
		return nil, err
	}
	switch opts.Containerd {
	case "", "1":
	case "2":
		if s.ContainerdDir, err = containerd2().cacheDir(repo); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("containerd %q: there is 1 and 2", opts.Containerd)
	}
	if opts.Users {
		if s.RuncDir, err = runc().cacheDir(repo); err != nil {
			return nil, err
		}
	}
	if opts.CRIO {
		if s.CRIODir, err = crio().cacheDir(repo); err != nil {
			return nil, err
		}
	}
	return open(opts.Dir, s, opts.Log), nil
}

func open(dir string, s *state, log io.Writer) *Lab {
	return &Lab{Dir: dir, NodeName: s.NodeName, Paths: newPaths(dir, s), state: s, progress: newProgress(log)}
}

// Open returns the lab running in dir; if empty, see Options. Some of its components may be stopped or unhealthy; it is
// an error if none is running.
func Open(dir string) (*Lab, error) {
	dir = folder(dir)
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no lab in %s: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	l := open(dir, s, nil)
	for _, name := range l.components() {
		if _, err := l.PID(name); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("lab in %s: no component is running", dir)
}

// Down removes the lab in dir, running or not, and every trace of it. The error lists the remaining traces.
func Down(ctx context.Context, dir string, log io.Writer) error {
	dir = folder(dir)
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root")
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	l := open(dir, &state{}, log)
	unlock, err := lock(ctx, "nodeagent-lab", "another command is bringing up or removing the lab", l.logf)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.claim(); err != nil {
		return err
	}
	return l.down(ctx)
}

// Down removes the lab and every trace of it. The error lists the remaining traces.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx, l.Dir, l.out) }

// Server is the apiserver's address.
func (l *Lab) Server() string {
	return cmp.Or(l.state.Server, "https://"+loopback(l.state.Ports.APIServer))
}

// KubeletPort is the port of kubelet's API on 127.0.0.1, with a certificate signed by CAFile.
func (l *Lab) KubeletPort() int { return l.state.Ports.Kubelet }

// KubeletHealthPort is the port of kubelet's /healthz on 127.0.0.1, without TLS.
func (l *Lab) KubeletHealthPort() int { return l.state.Ports.KubeletHealth }

// build creates a lab on a machine that has none.
func (l *Lab) build(ctx context.Context, join string) error {
	prepare := func(ctx context.Context) error { return l.prepare(ctx, join) }
	steps := []func(context.Context) error{func(ctx context.Context) error {
		return installPackages(ctx, l.progress)
	}, l.buildPrograms, prepare, l.startAll}
	if join != "" { // everything is on the machine that emulates this one
		steps = steps[2:]
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.logf("ready: node %s", l.NodeName)
	return nil
}

// prepare creates everything that the processes need at start.
func (l *Lab) prepare(ctx context.Context, join string) error {
	if otherKubelet(ctx) {
		return errors.New("a kubelet that is not the lab's runs on this machine: refusing to disturb it")
	}
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return err
	}
	var err error
	if l.state.Ports, err = choosePorts(); err != nil {
		return err
	}
	if err := l.state.recordHost(ctx); err != nil {
		return err
	}
	if join != "" {
		if err := l.join(join); err != nil {
			return err
		}
	}
	if err := l.state.write(l.Dir); err != nil {
		return err
	}
	if err := l.share(); err != nil {
		return err
	}
	for _, dir := range []string{"log", "run", "bin", "images", "cni/networks", "kubelet", "volume-plugins"} {
		if err := os.MkdirAll(filepath.Join(l.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{l.Paths.StaticPodDir, l.Paths.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := l.createNodeLink(ctx); err != nil {
		return err
	}
	if !l.state.systemd() {
		if err := createCgroups(l.Paths.CgroupRoot); err != nil {
			return fmt.Errorf("make cgroup %s: %w", l.Paths.CgroupRoot, err)
		}
	}
	if join != "" {
		return l.configure()
	}
	if err := createPKI(l.Dir, l.NodeName); err != nil {
		return err
	}
	if err := l.configure(); err != nil {
		return err
	}
	return l.buildHelpers(ctx)
}

// share gives the lab's folder shared mount propagation if its filesystem has none, as on machines without systemd:
// otherwise containers with Bidirectional mounts, above all CSI plugins, would not start.
func (l *Lab) share() error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	if m, ok := mountOf(mounts, l.Dir); ok && m.Shared {
		return nil
	}
	if err := unix.Mount(l.Dir, l.Dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to itself: %w", l.Dir, err)
	}
	if err := unix.Mount("", l.Dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share %s: %w", l.Dir, err)
	}
	return nil
}

// startAll starts the components. The apiserver and containerd take the longest, so the images are imported while the
// apiserver starts.
func (l *Lab) startAll(ctx context.Context) error {
	var early, last []string
	for _, name := range l.components() {
		switch name {
		case "etcd", "containerd", "crio", "node-proxy":
			early = append(early, name)
		case "kube-apiserver":
		default:
			last = append(last, name)
		}
	}
	for _, name := range early {
		if err := l.Start(ctx, name); err != nil {
			return err
		}
		l.logf("%s is ready", name)
	}
	if l.state.Part == "" {
		if err := l.begin("kube-apiserver"); err != nil {
			return err
		}
	}
	if err := l.importBaseImages(ctx); err != nil {
		return err
	}
	l.logf("images are imported")
	if l.state.Part == "" {
		if err := l.await(ctx, "kube-apiserver"); err != nil {
			return err
		}
		l.logf("kube-apiserver is ready")
	}
	for _, name := range last {
		if err := l.begin(name); err != nil {
			return err
		}
	}
	for _, name := range last {
		if err := l.await(ctx, name); err != nil {
			return err
		}
		l.logf("%s is ready", name)
	}
	if err := l.WaitNodeReady(ctx); err != nil {
		return err
	}
	return l.WaitNamespace(ctx, "default")
}

// choosePorts prefers ports that are easy to recognize, and takes any others if those are in use.
func choosePorts() (ports, error) {
	var p ports
	for _, want := range []struct {
		port *int
		like int
	}{
		{&p.Etcd, 12379}, {&p.EtcdPeer, 12380}, {&p.APIServer, 16443}, {&p.ControllerManager, 12257},
		{&p.Scheduler, 12259}, {&p.Kubelet, 10250}, {&p.KubeletHealth, 10248},
	} {
		listener, err := net.Listen("tcp", loopback(want.like))
		if err != nil {
			listener, err = net.Listen("tcp", loopback(0))
		}
		if err != nil {
			return p, fmt.Errorf("find a free port: %w", err)
		}
		*want.port = listener.Addr().(*net.TCPAddr).Port
		defer listener.Close() // not before all are chosen, otherwise one could be chosen twice
	}
	return p, nil
}
