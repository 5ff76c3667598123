package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/test/lab"
)

// namespace is the agent's namespace in the plain manifests.
const namespace = "nodeagent"

// daemonSet is the agent in its image, under kubelet, as in packaging/kubernetes/manifests.
type daemonSet struct {
	image string
	init  int // the process that stands in for the host's init: process 1 of this machine may not let its namespaces be opened
}

// InstallDaemonSet is Install for the agent as a DaemonSet. Commands call its program on the host, like people.
func InstallDaemonSet(ctx context.Context, l *lab.Lab, dir, binary string, overrides Overrides) (*Agent, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	image, err := ImportImage(ctx, l, binary)
	if err != nil {
		return nil, err
	}
	init, err := l.PID("etcd")
	if err != nil {
		return nil, err
	}
	set := &daemonSet{image, init}
	a := &Agent{Lab: l, Dir: dir, Binary: filepath.Join(dir, "run/nodeagent"),
		Config: filepath.Join(dir, "config.yaml"), how: set}
	return a, a.Configure(overrides)
}

// ImportImage makes the image of a binary, imports it into the lab's containerd, and returns its name.
func ImportImage(ctx context.Context, l *lab.Lab, binary string) (string, error) {
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	image := "localhost/nodeagent:" + hex.EncodeToString(sum[:6])
	ctr := []string{"--address", l.Paths.ContainerdSocket, "--namespace", "k8s.io", "images"}
	if known, err := output(ctx, l.Paths.Ctr, append(ctr, "list", "--quiet", "name=="+image)...); err != nil ||
		known != "" {
		return image, err
	}
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	archive := binary + ".tar"
	cmd := exec.CommandContext(ctx, "go", "run", "./packaging/image", "-o", archive, "-ref", image, binary)
	cmd.Dir = repo
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the image: %w\n%s", err, out)
	}
	_, err = output(ctx, l.Paths.Ctr, append(ctr, "import", archive)...)
	return image, err
}

// settings override those of a process of the host: the DaemonSet has its own token.
func (d *daemonSet) settings(a *Agent) map[string]any {
	return map[string]any{
		"socket": filepath.Join(a.Dir, "run/agent.sock"),
		"paths":  map[string]any{"kubeconfig": "", "initPID": d.init, "kubeletRoot": a.Lab.Paths.KubeletRoot},
		"report": map[string]any{"metrics": map[string]any{"listen": probes}},
	}
}

func (d *daemonSet) start(ctx context.Context, a *Agent, env []string) error {
	if len(env) > 0 {
		return errors.New("the DaemonSet takes no environment from a test")
	}
	var settings struct {
		StateDir string `yaml:"stateDir"`
	}
	text, err := os.ReadFile(a.Config)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &settings); err != nil {
		return err
	}
	manifests, err := Manifests(a.Lab, d.image, string(text), settings.StateDir)
	if err != nil {
		return err
	}
	right, err := kubeletRight()
	if err != nil {
		return err
	}
	if err := a.Lab.KubectlApply(ctx, manifests+"\n---\n"+right); err != nil {
		return err
	}
	return WaitFor(ctx, "the agent to answer", func() error { // kubelet waits between restarts
		_, err := a.Status(ctx)
		return err
	})
}

// stop removes the pods.
func (d *daemonSet) stop(a *Agent) error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	_, err := a.Lab.Kubectl(ctx, "delete", "daemonset", "--namespace="+namespace, "nodeagent", "--ignore-not-found",
		"--cascade=foreground", "--timeout=10m")
	return err
}

func (d *daemonSet) kill(a *Agent) error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(status.PID, syscall.SIGKILL); err != nil {
		return err
	}
	return WaitFor(ctx, "the agent's process to be gone", func() error {
		if _, err := os.Stat("/proc/" + strconv.Itoa(status.PID)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("process %d: %v", status.PID, err) //nolint:errorlint // nil where it still runs
		}
		return nil
	})
}

func (d *daemonSet) log(a *Agent) string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := a.Lab.Kubectl(ctx, "logs", "--namespace="+namespace, "daemonset/nodeagent", "--tail=60")
	return fmt.Sprint(string(out), err)
}
