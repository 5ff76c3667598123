// Command labctl brings up a real one-node Kubernetes cluster on this machine, and removes it without a trace.
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
	"syscall"

	"github.com/nodeagent/nodeagent/test/lab"
)

const usage = `usage: labctl [--dir FOLDER] [--containerd 1|2] [--crio] COMMAND

  up        make sure a healthy lab runs; builds and installs what is missing. --containerd 1 is Debian's 1.6,
            2 a containerd 2 that is built; without it that of the running lab, else Debian's. --crio: CRI-O instead of either
  down      remove the lab and every trace of it; lists what remains, if anything
  build     only build the programs that a lab runs, Kubernetes and containerd 2, unless they are built; needs no root
  helm      build helm, unless it is built, and print its path
  packages  only install the Debian packages that lab and tests need
  status    one line for each component; exit code 1 when the lab is not healthy
  env       what a shell needs to use the lab
  stop COMPONENT    end one component (etcd, containerd, kubelet ...), as a crash would
  start COMPONENT   start it again
  kubectl ARGS...   run kubectl as the cluster's admin
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(realMain(ctx, os.Args[1:]))
}

func realMain(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("labctl", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", lab.DefaultDir, "")
	containerd := flags.String("containerd", "", "")
	crio := flags.Bool("crio", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	if err := command(ctx, lab.Options{Dir: *dir, Containerd: *containerd, CRIO: *crio, Log: os.Stderr}, flags.Arg(0),
		flags.Args()[1:]); err != nil {
		if exit := (*exec.ExitError)(nil); flags.Arg(0) == "kubectl" && errors.As(err, &exit) {
			return exit.ExitCode() // kubectl has printed why
		}
		fmt.Fprintln(os.Stderr, "labctl:", err)
		return 1
	}
	return 0
}

func command(ctx context.Context, opts lab.Options, verb string, args []string) error {
	wanted := map[string]int{"stop": 1, "start": 1}[verb]
	if verb != "kubectl" && len(args) != wanted {
		return fmt.Errorf("%s takes %d arguments\n%s", verb, wanted, usage)
	}
	switch verb {
	case "up":
		l, err := lab.Up(ctx, opts)
		if err != nil {
			return err
		}
		printEnv(l)
		return nil
	case "down":
		return lab.Down(ctx, opts.Dir, opts.Log)
	case "build":
		return lab.Build(ctx, opts)
	case "helm":
		path, err := lab.Helm(ctx, opts)
		if err != nil {
			return err
		}
		fmt.Println(path)
		return nil
	case "packages":
		return lab.InstallPackages(ctx, opts.Log)
	case "status":
		return status(ctx, opts.Dir)
	case "env":
		l, err := lab.Open(opts.Dir)
		if err != nil {
			return err
		}
		printEnv(l)
		return nil
	case "stop", "start":
		return switchComponent(ctx, opts.Dir, verb, args[0])
	case "kubectl":
		return kubectl(ctx, opts.Dir, args)
	}
	return fmt.Errorf("%q is no command\n%s", verb, usage)
}

func switchComponent(ctx context.Context, dir, verb, component string) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	if verb == "stop" {
		return l.Stop(ctx, component)
	}
	return l.Start(ctx, component)
}

func printEnv(l *lab.Lab) {
	fmt.Printf("export KUBECONFIG=%s\n", l.Paths.AdminKubeconfig)
	fmt.Printf("export PATH=$PATH:%s # has kubectl\n", l.Paths.BinDir)
}

func status(ctx context.Context, dir string) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	for _, name := range lab.Components {
		if pid, err := l.PID(name); err == nil {
			fmt.Printf("%-24s process %d, log %s/%s.log\n", name, pid, l.Paths.LogDir, name)
		} else {
			fmt.Printf("%-24s not running\n", name)
		}
	}
	return l.Healthy(ctx)
}

// kubectl passes on the terminal, for exec and edit.
func kubectl(ctx context.Context, dir string, args []string) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	argv := append(l.KubectlCommand(), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
