// Command eventcenter receives the findings and actions of a fleet's agents, stores them durably, and serves them: the
// state of nodes, faults, and every event to subscribers. It can change no object in a cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// Version is set when the program is built.
var Version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, newRoot(), os.Args[1:])
	stop()
	os.Exit(code)
}

// options are the flags that every verb has.
type options struct{ command.Asker }

func newRoot() *cobra.Command {
	o := &options{command.Asker{Client: client.Client{Default: "http://" + defaultListen}, Templates: verbTexts, Functions: functions()}}
	root := o.Root(&cobra.Command{
		Use:   "eventcenter",
		Short: "Receive and store the events of a fleet's agents, and answer queries",
		Long: `eventcenter receives and stores the events of nodeagents, and answers queries.

  eventcenter serve          run the center
  eventcenter nodes          which nodes exist, and in which state?
  eventcenter faults         what is wrong now?
  eventcenter events         what happened? (--follow: and what happens now)
  eventcenter node X         what is wrong with a node, and what happened on it?
  eventcenter report         the day or the week of the fleet
  eventcenter export         the journal as lines of JSON, for a data lake
  eventcenter login          a code for the pages, which show all of this in a browser
  eventcenter subscriptions  which subscribers receive events, and how far are they?
  eventcenter dead-letters   which events did a subscriber not accept?
  eventcenter verify         is the whole journal readable, and does it match the shown state?

Exit codes: 0 fine, 1 problems found, 2 could not tell.`,
		Version: Version,
	})
	root.AddCommand(newServe(o), newNodes(o), newFaults(o), newEvents(o), newNode(o), newVerify(o), newBackup(o),
		newRestore(o), newSalvage(o), newMigrate(o), newLogin(o), newReport(o), newExport(o), newSubscriptions(o), newDeadLetters(o),
		newReplay(o))
	return root
}

// verb returns a command with this many arguments.
func verb(use, short string, args int, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(args), RunE: run}
}
