package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
)

func newVerify(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read all of the journal, and compare what it gives with what the center shows",
		Long: `Read all of the journal and its checksums, and compare what it gives with the center's last checkpoint, which
is at most 5 minutes old. It reads the center's directory, also while the center runs, and changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := eventcenter.Verify(cmd.Context(), o.directory())
			if err != nil {
				return err
			}
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), v)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), verification(v))
			}
			if err == nil && !v.Fine() {
				err = errProblems
			}
			return err
		},
	}
}

// verification is what was found, for people.
func verification(v eventcenter.Verification) string {
	var w strings.Builder
	fmt.Fprintf(&w, "journal %s: offsets %d to %d\n", v.Journal, v.Oldest, v.Newest)
	for _, g := range v.Gaps {
		fmt.Fprintf(&w, "LOST: offsets %d to %d: %s\n", g.From, g.To, event.Plain(g.Reason))
	}
	for _, d := range v.Differences {
		fmt.Fprintf(&w, "DIFFERS: node %s of %s: the checkpoint has %s, the journal gives %s\n", event.Plain(d.Node),
			event.Plain(d.Cluster), event.Plain(d.Checkpoint), event.Plain(d.Rebuilt))
	}
	if v.Fine() && v.Checkpoint == 0 {
		w.WriteString("all of it can be read; there is no checkpoint to compare yet\n")
	} else if v.Fine() {
		fmt.Fprintf(&w, "all of it can be read, and gives the checkpoint of offset %d\n", v.Checkpoint)
	}
	return w.String()
}

func newBackup(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the journal and the checkpoints into an archive, also while the center runs",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Backup(cmd.Context(), o.directory(), args[0])
			if err != nil {
				return err
			}
			if o.json() {
				return printJSON(cmd.OutOrStdout(), m)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, up to offset %d\n", event.Plain(args[0]), len(m.Files),
				m.Newest)
			return err
		},
	}
}

func newRestore(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a directory from an archive; it must not have a journal yet",
		Long: `Make the center's directory from an archive. What came after the backup is not there, and its offsets will be
given to other events: the journal gets a new UUID, by which consumers notice. A new token is made at the next start.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Restore(args[0], o.directory())
			if err != nil {
				return err
			}
			if o.json() {
				return printJSON(cmd.OutOrStdout(), m)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, up to offset %d; the journal is now %s\n",
				event.Plain(o.directory()), len(m.Files), m.Newest, m.Journal)
			return err
		},
	}
}
