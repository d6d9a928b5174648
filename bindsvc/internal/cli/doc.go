// Package cli is the administrator's command line: commands that ask a running
// service through its admin API, with the client generated from the API's document,
// and show the answer as a table or as JSON.
//
// A command ends with one of four exit codes:
//
//	0  done; an explanation or a question of the audit is done whatever it says
//	1  the service refused, or the work failed or was interrupted
//	2  wrong arguments or settings; the service was not asked
//	3  the service could not be reached
//
// What the service answers is data of many users. Tables escape its control
// characters, which a terminal would obey, and files of CSV what a spreadsheet would run.
package cli
