// Command tracecenter follows every creation, deletion and upgrade of a cluster's pods, judges it against the promised
// minute, and finds the cause of each miss. It can change no object in the cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	remote "github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// Version is set when the program is built.
var Version = "dev"

const defaultListen = "127.0.0.1:10687"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int { return command.Run(ctx, newRoot(), args) }

func newRoot() *cobra.Command {
	o := &command.Asker{Client: remote.Client{Default: "http://" + defaultListen}, Templates: verbTexts, Functions: functions()}
	root := o.Root(&cobra.Command{
		Use:   "tracecenter",
		Short: "Judge each delivery of a pod, and explain the misses",
		Long: `tracecenter follows the pods of one cluster, and judges each creation, deletion and upgrade.

Exit codes: 0 fine, 1 problems found, 2 could not tell.`,
		Version: Version,
	})
	root.PersistentFlags().StringVar(&o.Token, "token-file", "", "file with a token of a user of the cluster (default: "+
		"the program's own, in the directory)")
	root.AddCommand(append(newVerbs(o), newServe(o))...)
	return root
}
