"""Requests of many users in six languages and five topics, as Chatbot Arena's rows and other chat formats."""

from __future__ import annotations

from random import Random
from typing import Any

START, DAYS, DAY = 1_680_739_200, 125, 86_400  # 6 April 2023, the days of OSD's Arena sample
TOPICS = (
    "Business_Corporate", "Computers and Technology", "Games", "Education", "Social Networking and Messaging",
)  # fmt: skip  # the five largest classes of OSD's classifier
LANGUAGES = {"English": 10, "Chinese": 2, "Japanese": 2, "Spanish": 2, "Portuguese": 2, "Russian": 2}

SLOTS = {
    "Business_Corporate": {
        "service": (("sales team", "supplier", "annual budget", "business plan", "customer survey", "trade fair", "board meeting",
                     "price list"), ("bakery", "law firm", "shipping company", "hotel", "design studio", "clinic")),
        "public": (("tax form", "office lease", "press release", "hiring plan"), ("farm", "museum", "bank", "theatre")),
    },
    "Computers and Technology": {
        "service": (("memory leak", "login page", "backup script", "network card", "slow query", "test server", "file system",
                     "build error"), ("laptop", "phone", "web shop", "database", "router", "cluster")),
        "public": (("boot loader", "print queue", "video codec", "search index"), ("tablet", "camera", "drone", "printer")),
    },
    "Games": {
        "service": (("opening move", "boss fight", "high score", "card deck", "treasure map", "team strategy", "puzzle level",
                     "character class"), ("chess club", "role play", "racing game", "board game", "arcade", "tournament")),
        "public": (("dice roll", "race track", "quest line", "word list"), ("quiz show", "farm game", "pinball", "league")),
    },
    "Education": {
        "service": (("history essay", "algebra exam", "reading list", "lab report", "study plan", "final project", "spelling test",
                     "science fair"), ("high school", "college", "evening class", "first grade", "summer camp", "library")),
        "public": (("book review", "geometry proof", "class trip", "thesis"), ("kindergarten", "seminar", "academy", "lab")),
    },
    "Social Networking and Messaging": {
        "service": (("group chat", "profile photo", "status update", "friend request", "video call", "birthday message",
                     "privacy setting", "short post"), ("family", "neighbors", "old classmates", "followers", "book club", "band")),
        "public": (("voice note", "photo album", "reply", "invitation"), ("cousins", "fans", "teammates", "colleagues")),
    },
}  # fmt: skip
ENGLISH = {
    "Business_Corporate": (
        ("How can a {b} with {n} workers improve its {a}?", "Write a short note about the {a} of a {b} with {n} workers.",
         "What should a {b} of {n} people know about a {a}?"),
        ("Start with the {a} and give it to one person.", "Set a clear goal for the {a} and check it each week."),
        ("For a {b} with {n} workers this saves both time and money.", "With {n} workers the {b} can do it in a month."),
    ),
    "Computers and Technology": (
        ("How do I fix the {a} on my {b} with {n} GB of memory?", "Why does the {a} of a {b} with {n} GB fail after an update?",
         "Explain how to test the {a} of a {b} that has {n} GB."),
        ("First read the log of the {a}, then start it again.", "Turn the {a} off and install the last update."),
        ("A {b} with {n} GB should run it without errors.", "If the {b} still fails, {n} GB may not be enough."),
    ),
    "Games": (
        ("What is the best {a} for a {b} with {n} players?", "Invent a {a} for a {b} with {n} players.",
         "How does the {a} work in a {b} of {n} players?"),
        ("The best {a} is the one nobody expects.", "Keep the {a} simple and watch the other side."),
        ("In a {b} with {n} players each turn counts.", "With {n} players the {b} is won at the end."),
    ),
    "Education": (
        ("Help me prepare a {a} for {b} in {n} days.", "What makes a good {a} in {b} when there are {n} days left?",
         "Give me a plan of {n} days for my {a} in {b}."),
        ("Read the rules of the {a} and make a list of topics.", "Begin the {a} with what you know best."),
        ("After {n} days you will be ready for {b}.", "Use the last of the {n} days to rest before {b}."),
    ),
    "Social Networking and Messaging": (
        ("How do I send a {a} to {n} of my {b}?", "Write a friendly {a} for {n} people, my {b}.",
         "Is it rude to leave a {a} from {n} of my {b} unread?"),
        ("Keep the {a} short and kind.", "Open the {a} and choose who can see it."),
        ("All {n} of your {b} will see it at once.", "Your {b}, all {n} of them, will like that."),
    ),
}  # fmt: skip
OTHERS = {
    "Chinese": (
        {"service": ("苹果", "手机", "书", "茶", "汽车", "花"), "public": ("鱼", "米", "灯", "船")},
        ("{n}个{a}多少钱？", "我想买{n}个{a}，怎么办？", "为什么人们喜欢{a}？请说{n}个理由。"),
        ("{a}很好，", "关于{a}，"), ("{n}个就够了。", "请先看看这{n}个。"),
    ),
    "Japanese": (
        {"service": ("りんご", "電話", "本", "お茶", "車", "花"), "public": ("魚", "米", "船", "時計")},
        ("{a}を{n}個買うにはどうすればいいですか？", "{a}について{n}つ教えてください。", "{a}は{n}個でいくらですか？"),
        ("{a}はとても良いです。", "はい、{a}ですね。"), ("{n}個で十分です。", "まず{n}個を見てください。"),
    ),
    "Spanish": (
        {"service": ("manzanas", "libros", "zapatos", "flores", "mesas", "coches"), "public": ("barcos", "lunas", "peces", "casas")},
        ("¿Dónde puedo comprar {n} {a} para mi familia?", "¿Cuánto cuestan {n} {a} en el mercado?",
         "Explica por qué la gente quiere {n} {a}."),
        ("Las tiendas del centro tienen {a} muy buenos.", "Primero mira bien los {a}."),
        ("Con {n} es suficiente para todos.", "Por {n} se paga un poco menos."),
    ),
    "Portuguese": (
        {"service": ("maçãs", "livros", "sapatos", "flores", "mesas", "carros"), "public": ("barcos", "peixes", "pães", "luas")},
        ("Onde posso comprar {n} {a} para a minha família?", "Quanto custam {n} {a} na feira?",
         "Explique por que as pessoas querem {n} {a}."),
        ("As lojas do centro têm {a} muito bons.", "Primeiro olhe bem para {a}."),
        ("Com {n} já chega para todos.", "Por {n} você paga um pouco menos."),
    ),
    "Russian": (
        {"service": ("яблок", "книг", "цветов", "столов", "машин", "билетов"), "public": ("лодок", "рыб", "домов", "ламп")},
        ("Где купить {n} {a} для семьи?", "Сколько стоит {n} {a} на рынке?", "Зачем людям {n} {a}?"),
        ("В центре города много {a}.", "Сначала посмотрите на цену {a}."),
        ("Хватит {n} на всех.", "За {n} платят немного меньше."),
    ),
}  # fmt: skip


def _english(draw: Random, space: str, topic: str) -> tuple[str, str]:
    first, second = SLOTS[topic][space]
    slots = {"a": draw.choice(first), "b": draw.choice(second), "n": draw.randrange(2, 100)}
    questions, openings, endings = ENGLISH[topic]
    answer = f"{draw.choice(openings)} {draw.choice(endings)}"
    return draw.choice(questions).format(**slots), answer.format(**slots)


def _other(draw: Random, space: str, language: str) -> tuple[str, str]:
    words, questions, openings, endings = OTHERS[language]
    slots = {"a": draw.choice(words[space]), "n": draw.randrange(2, 100)}
    space_between = "" if language in ("Chinese", "Japanese") else " "
    answer = f"{draw.choice(openings)}{space_between}{draw.choice(endings)}"
    return draw.choice(questions).format(**slots), answer.format(**slots)


def _request(draw: Random, space: str) -> dict[str, Any]:
    """Language, topic, time and words of one request; games give way to business as the days go by."""
    day = draw.randrange(DAYS)
    language = draw.choices(tuple(LANGUAGES), tuple(LANGUAGES.values()))[0]
    late = day / DAYS
    topic = draw.choices(TOPICS, (1 + 2 * late, 3, 3 - 2 * late, 2, 1))[0] if language == "English" else ""
    question, answer = _english(draw, space, topic) if topic else _other(draw, space, language)
    time = float(START + day * DAY + draw.randrange(DAY))
    return {"language": language, "topic": topic, "time": time, "question": question, "answer": answer}


def arena(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``lmsys/chatbot_arena_conversations``, and the ``topic`` that it was drawn from."""
    said = _request(draw, space)
    user = {"role": "user", "content": said["question"]}
    conversation = [user, {"role": "assistant", "content": said["answer"]}]
    row = {
        "question_id": f"{draw.getrandbits(64):016x}",
        "model_a": "target",
        "model_b": "other",
        "winner": draw.choice(("model_a", "model_b", "tie")),
        "judge": f"arena_user_{draw.randrange(1000)}",
        "conversation_a": conversation,
        "conversation_b": conversation,
        "turn": 1,
        "anony": True,
        "language": said["language"],
        "tstamp": said["time"],
    }
    return row | ({"topic": said["topic"]} if said["topic"] else {})


def dolly(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``databricks/databricks-dolly-15k``; two in five have a context to answer from."""
    topic = draw.choice(TOPICS)
    question, answer = _english(draw, space, topic)
    context = draw.random() < 0.4
    return {
        "instruction": question,
        "context": f"Some people say this. {answer} Others do not agree." if context else "",
        "response": answer,
        "category": "closed_qa" if context else "open_qa",
    }
