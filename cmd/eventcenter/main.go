// Command eventcenter receives the findings and actions of a fleet's agents, stores them durably, and serves them: the
// state of nodes, faults, and every event to subscribers. It can change no object in a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

// Version is set when the program is built.
var Version = "dev"

// Exit codes: part of every verb's interface, the same as nodeagent's.
const (
	exitFine         = 0
	exitProblems     = 1
	exitCouldNotTell = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// errProblems ends a verb that has already printed problems.
var errProblems = errors.New("problems found")

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
	fmt.Fprintln(os.Stderr, "eventcenter:", event.Plain(err.Error()))
	return exitCouldNotTell
}

// options are the flags that every verb has.
type options struct {
	dir    string
	server string
	ca     string
	output string
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
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
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if formats := formatsOf(cmd); !slices.Contains(formats, o.output) {
				return fmt.Errorf("--output %q: must be %s", o.output, strings.Join(formats, " or "))
			}
			return nil
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.dir, "dir", "", "directory of the center's data and token (default $XDG_STATE_HOME/eventcenter, "+
		"else ./eventcenter-data)")
	flags.StringVar(&o.server, "server", "", "address of the center to query (default: that of the last center "+
		"that ran in the directory, else http://"+defaultListen+")")
	flags.StringVar(&o.ca, "ca", "", "file with the CA certificates of an https center")
	flags.StringVarP(&o.output, "output", "o", "text", "output format: text or json")
	root.AddCommand(newServe(o), newNodes(o), newFaults(o), newEvents(o), newNode(o), newVerify(o), newBackup(o),
		newRestore(o), newSalvage(o), newMigrate(o), newLogin(o), newReport(o), newExport(o), newSubscriptions(o), newDeadLetters(o),
		newReplay(o))
	return root
}

// verb returns a command with this many arguments.
func verb(use, short string, args int, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(args), RunE: run}
}

// formatsOf returns the output formats of a verb.
func formatsOf(cmd *cobra.Command) []string {
	if parent := cmd.Parent(); parent != nil && parent.Name() == reportVerb {
		return []string{"text", "table", "json", "html"}
	}
	return []string{"text", "json"}
}

func (o *options) json() bool { return o.output == "json" }

// directory returns the data directory.
func (o *options) directory() string { return client.Directory("eventcenter", o.dir) }
