// Command demo shows nodeagent at work on this machine, with a real Kubernetes node: a disk fails, a deleted pod leaves
// things behind; both are found, reported and, if possible, repaired. Two pods are late, and tracecenter explains why. It ends by itself, and exits 0 only if all of it
// really happened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir := flag.String("dir", lab.DefaultDir, "folder of the lab")
	keep := flag.Bool("keep", false, "leave the lab running, to explore it")
	flag.Parse()
	err := demo(ctx, *dir, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo failed:", err)
		os.Exit(1)
	}
}

// stage is the state that the steps of the demo share.
type stage struct {
	out    io.Writer
	lab    *lab.Lab
	agent  *harness.Agent
	center *center
	disk   *harness.Disk
	victim *harness.Victim
	began  time.Time
}

// trusted rejects a checkout that others than root can change: the node's kubelet is built in it, and the agent would
// take that for an impostor.
func trusted() error {
	dir, err := os.Getwd()
	if err == nil {
		err = owned.Program(filepath.Join(dir, "test/need/alone"))
	}
	if err != nil {
		return fmt.Errorf("the agent would not trust a kubelet that is built here: %w; clone into a directory that only root "+
			"can change, such as /root or /opt", err)
	}
	return nil
}

func demo(ctx context.Context, dir string, keep bool) (err error) {
	s := &stage{out: os.Stdout, began: time.Now()}
	if os.Geteuid() != 0 {
		return errors.New("the demo needs root: it makes a real node and a real disk fail")
	}
	if err := trusted(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "nodeagent-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	s.title("1. This very host")
	s.printf("Building the agent …")
	binary, err := harness.Build(ctx, work)
	if err != nil {
		return err
	}
	s.command(ctx, binary, "check")

	s.title("2. A real Kubernetes node")
	s.printf("etcd, kube-apiserver, kubelet, containerd … (Kubernetes is built from source once; that takes some minutes)")
	before, _ := lab.Open(dir)
	if s.lab, err = lab.Up(ctx, lab.Options{Dir: dir, Log: os.Stdout}); err != nil {
		return err
	}
	if before == nil && !keep {
		defer func() { err = errors.Join(err, s.lab.Down(context.WithoutCancel(ctx))) }()
	}
	if s.center, err = s.startCenter(ctx); err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, s.center.stop()); err == nil {
			s.center.printURL()
		}
	}()
	settings, err := s.center.settings()
	if err != nil {
		return err
	}
	if s.agent, err = harness.Install(ctx, s.lab, filepath.Join(dir, "agent"), binary, settings); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.agent.Stop()) }()
	for _, act := range []func(context.Context) error{s.startAgent, s.diskFails, s.diskRepaired, s.podLeavesThings,
		s.clean, s.showCenter, s.judgePods} {
		if err := act(ctx); err != nil {
			return fmt.Errorf("%w\n\nthe agent's log ends with:\n%s", err, s.agent.LogTail())
		}
	}
	s.title("Done: all of it really happened")
	return nil
}

func (s *stage) title(text string) {
	fmt.Fprintf(s.out, "\n── %s %s [%.0f s]\n", text, strings.Repeat("─", max(0, 60-len(text))),
		time.Since(s.began).Seconds())
}

func (s *stage) printf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// command shows a command and its output; an exit code is part of the output.
func (s *stage) command(ctx context.Context, name string, args ...string) {
	fmt.Fprintf(s.out, "\n$ %s %s\n", filepath.Base(name), strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = s.out, s.out
	if exit, ok := errors.AsType[*exec.ExitError](cmd.Run()); ok {
		fmt.Fprintf(s.out, "(exit code %d)\n", exit.ExitCode())
	}
}

// nodeagent shows a command of the agent.
func (s *stage) nodeagent(ctx context.Context, args ...string) (harness.Answer, error) {
	answer, err := s.agent.CLI(ctx, args...)
	fmt.Fprintf(s.out, "\n$ nodeagent %s\n%s%s(exit code %d)\n", strings.Join(args, " "), answer.Stdout, answer.Stderr,
		answer.Code)
	return answer, err
}

// kubectl shows the view of every user of the cluster.
func (s *stage) kubectl(ctx context.Context, args ...string) {
	out, err := s.lab.Kubectl(ctx, args...)
	fmt.Fprintf(s.out, "\n$ kubectl %s\n%s", strings.Join(args, " "), out)
	if err != nil {
		fmt.Fprintf(s.out, "(%v)\n", err)
	}
}
