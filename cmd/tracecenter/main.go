// Command tracecenter follows every creation, deletion and upgrade of a cluster's pods, judges it against the promised
// minute, and finds the cause of each miss. It can change no object in the cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

// Version is set when the program is built.
var Version = "dev"

// Exit codes: part of every verb's interface, the same as nodeagent's.
const (
	exitFine         = 0
	exitProblems     = 1
	exitCouldNotTell = 2
)

const defaultListen = "127.0.0.1:10687"

// errProblems ends a verb after it has printed problems.
var errProblems = errors.New("problems found")

// errCouldNotTell ends a verb whose answer is that it cannot be told.
var errCouldNotTell = errors.New("could not tell")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errProblems):
		return exitProblems
	}
	fmt.Fprintln(os.Stderr, "tracecenter:", plain(err.Error()))
	return exitCouldNotTell
}

// options are the flags that every verb has.
type options struct {
	remote.Client // of the tracecenter to query
	output        string
}

func newRoot() *cobra.Command {
	o := &options{Client: remote.Client{Default: "http://" + defaultListen}}
	root := &cobra.Command{
		Use:   "tracecenter",
		Short: "Judge each delivery of a pod, and explain the misses",
		Long: `tracecenter follows the pods of one cluster, and judges each creation, deletion and upgrade.

Exit codes: 0 fine, 1 problems found, 2 could not tell.`,
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "text" && o.output != "json" && (o.output != "html" || cmd.Name() != "weekly") {
				return fmt.Errorf("--output %q: must be text or json", o.output)
			}
			o.Dir = remote.Directory("tracecenter", o.Dir)
			return nil
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.Dir, "dir", "", "directory of the verdicts and the token (default $XDG_STATE_HOME/tracecenter, else ./tracecenter-data)")
	flags.StringVar(&o.Server, "server", "", "address of the tracecenter to query (default: that of the last one that ran in the directory, "+
		"else "+o.Default+")")
	flags.StringVar(&o.CA, "ca", "", "file with the CA certificates of an https server")
	flags.StringVar(&o.Token, "token-file", "", "file with a token of a user of the cluster (default: the program's own, in the directory)")
	flags.StringVarP(&o.output, "output", "o", "text", "output format: text or json")
	root.AddCommand(newServe(o), newLogin(o))
	root.AddCommand(newVerbs(o)...)
	return root
}
