package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

func newLogin(o *options) *cobra.Command {
	var name string
	var reader bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Print a code that opens the pages in a browser, once",
		Long: `Print the address of the pages, and a code that signs one person in, once, within ten minutes. The pages record
the person's actions under the name given here.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := "operator"
			if reader {
				role = "reader"
			}
			var answer api.SignInCode
			printed, err := o.call(cmd.Context(), cmd.OutOrStdout(), http.MethodPost, "/v1/sign-in-codes?"+
				url.Values{"name": {name}, "role": {role}}.Encode(), nil, &answer)
			if err != nil || printed {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/login\ncode: %s (for one person, until %s)\n", o.address(),
				event.Plain(answer.Code), answer.Ends.Local().Format(time.TimeOnly))
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", userName(), "name of the person who signs in")
	cmd.Flags().BoolVar(&reader, "reader", false, "the person only reads: cannot act on a fault or declare maintenance")
	return cmd
}

// userName returns who runs this command; empty if unknown.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
