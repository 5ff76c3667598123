package main

import (
	"net/url"
	"os/user"

	"github.com/spf13/cobra"
)

func newLogin(o *options) *cobra.Command {
	var reader bool
	cmd := o.Login(`Print the address of the pages, and a code that signs one person in, once, within ten minutes. The pages record
the person's actions under the name given here.`, userName(), func(query url.Values) {
		query.Set("role", "operator")
		if reader {
			query.Set("role", "reader")
		}
	})
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
