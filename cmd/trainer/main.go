// Command trainer is the training process of a starfish job, with the built-in
// models. A program with models of its own calls trainer.Main in the same way.
package main

import "starfish/trainer"

func main() { trainer.Main(nil) }
