package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// The parts of a cluster that can be on two machines: the control plane on the host of the emulated machine, which is
// the node.
const (
	controlPlane = "control-plane"
	node         = "node"
)

// hostOfGuest is the address of the host's loopback in QEMU's user network.
const hostOfGuest = "10.0.2.2"

// UpControlPlane starts a control plane for the node of an emulated machine, which joins it (Options.Join). It is a few
// processes on the loopback and a folder: unlike a lab it may exist several times. The caller must call End.
func UpControlPlane(ctx context.Context, opts Options) (*Lab, error) {
	if err := checkDir(opts.Dir); err != nil {
		return nil, err
	}
	repo, err := findRepo(opts.Repo)
	if err != nil {
		return nil, err
	}
	s := &state{NodeName: opts.NodeName, Repo: repo, Part: controlPlane}
	if s.BinDir, err = kubernetes().cacheDir(repo); err != nil {
		return nil, err
	}
	l := open(opts.Dir, s, opts.Log)
	if err := l.buildModules(ctx, repo, kubernetes(), containerd2()); err != nil {
		return nil, err
	}
	if s.Ports, err = choosePorts(); err != nil {
		return nil, err
	}
	for _, dir := range []string{"log", "run", "bin"} {
		if err := os.MkdirAll(filepath.Join(l.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(s.write(l.Dir), createPKI(l.Dir, l.NodeName), l.configure(), l.buildHelpers(ctx)); err != nil {
		return nil, err
	}
	for _, name := range l.components() {
		if err := l.Start(ctx, name); err != nil {
			return nil, errors.Join(err, l.End(ctx))
		}
	}
	return l, nil
}

// End ends the processes of a control plane.
func (l *Lab) End(ctx context.Context) error {
	var errs []error
	for _, name := range l.components() {
		errs = append(errs, l.Stop(context.WithoutCancel(ctx), name))
	}
	return errors.Join(errs...)
}

// components are the processes of this part of the lab, in the order in which they start.
func (l *Lab) components() []string {
	switch l.state.Part {
	case controlPlane:
		return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	case node:
		return []string{"containerd", "kubelet"}
	}
	if l.Paths.CRIODir != "" {
		all := slices.Clone(Components[:])
		all[slices.Index(all, "containerd")] = "crio"
		return all
	}
	return Components[:]
}

// join makes this machine the node of a control plane, in a folder of the machine that emulates it.
func (l *Lab) join(folder string) error {
	plane, err := readState(folder)
	if err != nil {
		return fmt.Errorf("control plane in %s: %w", folder, err)
	}
	l.state.Ports.APIServer = plane.Ports.APIServer
	l.state.Server = "https://" + net.JoinHostPort(hostOfGuest, strconv.Itoa(plane.Ports.APIServer))
	for _, name := range []string{"pki", "bin"} {
		if err := os.CopyFS(filepath.Join(l.Dir, name), os.DirFS(filepath.Join(folder, name))); err != nil {
			return err
		}
	}
	return nil
}

// systemd reports whether systemd creates the cgroups: it is the emulated machine's PID 1.
func (s *state) systemd() bool { return s.Part == node }

// unitTemplate is a unit like those of the packages of kubelet and containerd: their children outlive them.
var unitTemplate = template.Must(template.New("unit").Parse(`[Service]
ExecStart={{.Command}}
Environment=PATH={{.Path}} HOME={{.Dir}}
StandardOutput=append:{{.Log}}
StandardError=inherit
Delegate=yes
KillMode=process
`))

// startUnit starts a component as a service of its name.
func (l *Lab) startUnit(name string, argv []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	unit := name + ".service"
	if err := renderFile(filepath.Join("/run/systemd/system", unit), unitTemplate, map[string]string{
		"Command": strings.Join(argv, " "), "Path": searchPath(argv[0]), "Dir": l.Dir, "Log": l.logFile(name),
	}); err != nil {
		return err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"start", unit}} {
		if _, err := run(ctx, "", append([]string{"systemctl"}, args...)...); err != nil {
			return err
		}
	}
	out, err := run(ctx, "", "systemctl", "show", "--value", "--property=MainPID", unit)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return fmt.Errorf("MainPID of %s: %w", unit, err)
	}
	return record(l.Dir, name, pid)
}
