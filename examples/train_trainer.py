"""Pre-train a GPT-2 on a table of tokens: accelerate launch --num_processes 2 examples/train_trainer.py TABLE OUT."""

import sys
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from torch_table_loader import LoaderKeywords, Pack, StructuredDataset
from torch_table_loader.integrations.transformers import TableTrainer

table, out = sys.argv[1:]
pack = Pack(seq_len=64, eos_id=0, output="hf")
options: LoaderKeywords = {"batch_size": 8, "pack": pack, "shuffle": True, "even_ranks": "balance"}
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(out, num_train_epochs=2, save_steps=10, logging_steps=10, report_to=[])
trainer = TableTrainer(model, arguments, make_loader=lambda: StructuredDataset(table, **options).loader())
trainer.train(resume_from_checkpoint=any(Path(out).glob("checkpoint-*")))
